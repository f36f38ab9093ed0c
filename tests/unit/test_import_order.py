"""Data flows one way: api, catalog, planner, manifests, controller | cli; recovery beside the planner."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "operator" / "megatron_operator"

MAY_IMPORT = {
    "api": set(),
    "catalog": {"api"},
    "planner": {"api", "catalog"},
    "manifests": {"api", "catalog", "planner"},
    "lifecycle": {"api", "catalog", "planner", "manifests"},
    "controller": {"api", "catalog", "planner", "manifests", "lifecycle"},
    "cli": {"api", "catalog", "planner", "manifests"},
}
"""What each part may import beside itself."""

FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem != "__init__")


def imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_every_part_of_the_operator_has_its_place_in_the_order() -> None:
    assert {part(path) for path in FILES} <= MAY_IMPORT.keys()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_earlier_parts(path: Path) -> None:
    own = part(path)
    parts = {name.split(".")[1] for name in imported_modules(path) if name.startswith("megatron_operator.")}
    assert parts - {own} <= MAY_IMPORT[own]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_the_controller_knows_the_cluster_and_nobody_knows_torch(path: Path) -> None:
    roots = {name.split(".")[0] for name in imported_modules(path)}
    assert not roots & {"torch", "megatron", "megatron_trainer", "localcluster"}
    if part(path) != "controller":
        assert not roots & {"kopf", "kubernetes", "aiohttp"}


TRAINER = sorted((PACKAGE.parents[1] / "trainer-image" / "megatron_trainer").rglob("*.py"))


@pytest.mark.parametrize("path", TRAINER, ids=lambda path: str(path.name))
def test_the_trainer_imports_nothing_of_the_operator(path: Path) -> None:
    roots = {name.split(".")[0] for name in imported_modules(path)}
    assert not roots & {"megatron_operator", "kopf", "kubernetes", "localcluster"}
