"""The packages that Megatron-Bridge imports to train diffusion models are those of the image, but for one."""

import ast
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from megatron_trainer.bridge.absent_packages import ABSENT

IMAGES = Path(__file__).parents[2] / "trainer-image"
PLACEHOLDER = "megatron-energon"
"""Its datasets, which runs do not read; the trainer reads the same tar files itself."""


def _imported(family: str) -> set[str]:
    """Packages that the modules of a family import to train."""
    found = importlib.util.find_spec("megatron.bridge")
    assert found is not None
    assert found.submodule_search_locations is not None
    diffusion = Path(found.submodule_search_locations[0]) / "diffusion"
    folders = [diffusion / part / family for part in ("models", "data", "conversion")]
    files = [file for folder in (*folders, diffusion / "data" / "common") for file in folder.rglob("*.py")]
    return {name for file in files if "inference" not in str(file) for name in _packages(file)}


def _packages(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules = [node.module]
        for module in modules:
            parts = module.split(".")
            name = "-".join(parts[:2] if parts[0] == "megatron" else parts[:1]).replace("_", "-")
            if parts[0] not in sys.stdlib_module_names and name != "megatron-bridge":
                yield name


@pytest.mark.parametrize("family", ["flux", "wan"])
@pytest.mark.parametrize("image", ["bridge-gpu", "bridge-run"])
def test_an_image_has_what_trains_a_diffusion_model_but_for_a_placeholder(family: str, image: str) -> None:
    pins = (IMAGES / f"requirements-{image}.txt").read_text()
    installed = set(re.findall(r"^([a-z0-9-]+)==", pins, re.MULTILINE)) | {"transformer-engine"}

    assert _imported(family) - installed == {PLACEHOLDER}
    assert PLACEHOLDER.replace("-", ".") in ABSENT
