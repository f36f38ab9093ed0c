"""Why diffusion models are refused: packages that Megatron-Bridge imports for them, and the image lacks."""

import ast
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from megatron_operator.catalog import bridge_support

PINS = Path(__file__).parents[2] / "trainer-image" / "requirements-bridge-gpu.txt"
FUNCTIONS = {"flux": "flux_12b_pretrain_config", "wan": "wan_1_3b_pretrain_config"}


def _imported(family: str) -> set[str]:
    """Packages that the modules of a family import to train."""
    found = importlib.util.find_spec("megatron.bridge")
    assert found is not None
    assert found.submodule_search_locations is not None
    diffusion = Path(found.submodule_search_locations[0]) / "diffusion"
    folders = [diffusion / part / family for part in ("models", "data", "conversion")]
    files = [file for folder in (*folders, diffusion / "data" / "common") for file in folder.rglob("*.py")]
    return {name for file in files if "inference" not in file.name for name in _packages(file)}


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


@pytest.mark.parametrize(("family", "function"), FUNCTIONS.items())
def test_the_refusal_of_a_diffusion_model_names_the_packages_that_the_image_lacks(
    family: str, function: str
) -> None:
    installed = set(re.findall(r"^([a-z0-9-]+)==", PINS.read_text(), re.MULTILINE)) | {"transformer-engine"}
    missing = sorted(_imported(family) - installed)

    named = f"{', '.join(missing[:-1])} and {missing[-1]}"
    for mode in ("pretrain", "sft"):
        assert bridge_support.obstacle(function, mode).endswith(f"lacks {named}")
