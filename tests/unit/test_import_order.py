"""Imports go one way: api, catalog, planner, manifests, lifecycle, then controller or cli, then sdk, then ui.

The contract imports the standard library only. The trainer imports the contract and nothing of the operator;
of its own packages the launcher imports the others, never the other way round. The test kit is imported by
tests, benchmarks and demo, never the other way round.
"""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "operator" / "megatron_operator"
TRAINER = ROOT / "trainer-image" / "megatron_trainer"

MAY_IMPORT = {
    "api": set(),
    "catalog": {"api"},
    "planner": {"api", "catalog"},
    "manifests": {"api", "catalog", "planner"},
    "lifecycle": {"api", "catalog", "planner", "manifests"},
    "controller": {"api", "catalog", "planner", "manifests", "lifecycle"},
    "cli": {"api", "catalog", "planner", "manifests", "lifecycle"},
    "sdk": {"api", "catalog", "planner", "manifests", "lifecycle", "controller", "cli"},
    "ui": {"api", "catalog", "planner", "manifests", "lifecycle", "controller", "cli", "sdk"},
}
"""What each part of the operator may import beside itself and the contract."""

TRAINER_SHARED = {
    "bridge_flags",
    "engine",
    "errors",
    "flags",
    "left_out_settings",
    "listening",
    "read_errors",
    "secret_values",
    "settings",
    "termination",
    "tokenizer_files",
    "volume_paths",
}
"""Modules of the trainer that all its packages may import."""

TRAINER_MAY_IMPORT = {
    "errors": set(),
    "flags": {"errors"},
    "bridge_flags": {"errors", "flags"},
    "engine": {"bridge_flags", "flags"},
    "settings": {"errors"},
    "left_out_settings": set(),
    "listening": set(),
    "read_errors": set(),
    "secret_values": set(),
    "termination": {"secret_values"},
    "tokenizer_files": set(),
    "volume_paths": set(),
    "platform": TRAINER_SHARED,
    "telemetry": TRAINER_SHARED,
    "rendezvous": TRAINER_SHARED | {"telemetry"},
    "tracking": TRAINER_SHARED | {"telemetry"},
    "health": TRAINER_SHARED | {"telemetry", "rendezvous"},
    "checkpoints": TRAINER_SHARED | {"telemetry", "rendezvous", "health"},
    "worker": TRAINER_SHARED | {"telemetry", "tracking", "health", "checkpoints"},
    "bridge": TRAINER_SHARED | {"platform", "telemetry", "tracking", "checkpoints", "worker"},
    "weights": TRAINER_SHARED | {"platform", "telemetry", "checkpoints", "bridge"},
    "data": TRAINER_SHARED | {"platform", "telemetry", "worker", "bridge", "weights"},
    "launcher": TRAINER_SHARED
    | {"platform", "telemetry", "rendezvous", "tracking", "health", "checkpoints", "worker", "bridge"},
}
"""What each part of the trainer may import beside itself and the contract."""

FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem != "__init__")
TRAINER_FILES = sorted(path for path in TRAINER.rglob("*.py") if path != TRAINER / "__init__.py")
CLUSTER_LIBRARIES = {"kopf", "kubernetes", "aiohttp"}
TRAINER_LIBRARIES = {"torch", "megatron", "megatron_trainer"}


def python_files(*parts: str) -> list[Path]:
    return sorted(ROOT.joinpath(*parts).rglob("*.py"))


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_packages(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imported_modules(path)}


def part(path: Path, package: Path = PACKAGE) -> str:
    return path.relative_to(package).parts[0].removesuffix(".py")


def imported_parts(path: Path, package: Path) -> set[str]:
    return {name.split(".")[1] for name in imported_modules(path) if name.startswith(f"{package.name}.")}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_order_lists_every_part_of_the_operator() -> None:
    assert {part(path) for path in FILES} == MAY_IMPORT.keys()


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_a_module_imports_only_earlier_parts(path: Path) -> None:
    own = part(path)
    assert imported_parts(path, PACKAGE) - {own} <= MAY_IMPORT[own]


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_only_controller_and_sdk_access_the_cluster_and_no_part_imports_torch(path: Path) -> None:
    packages = imported_packages(path)
    assert not packages & (TRAINER_LIBRARIES | {"localcluster", "testkit", "tests"})
    if part(path) not in ("controller", "sdk"):
        assert not packages & CLUSTER_LIBRARIES


@pytest.mark.parametrize("path", [path for path in FILES if part(path) in ("sdk", "ui")], ids=relative)
def test_sdk_and_page_use_of_the_controller_only_its_api_client(path: Path) -> None:
    used = {name for name in imported_modules(path) if name.startswith("megatron_operator.controller")}
    client = ("megatron_operator.controller.api_client.", "megatron_operator.controller.api_resources.")
    assert all(name.startswith(client) for name in used)


@pytest.mark.parametrize("path", [path for path in FILES if part(path) == "lifecycle"], ids=relative)
def test_the_lifecycle_is_synchronous(path: Path) -> None:
    asynchronous = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
    assert not [node.lineno for node in ast.walk(parse(path)) if isinstance(node, asynchronous)]
    assert "asyncio" not in imported_packages(path)


@pytest.mark.parametrize("path", python_files("contract", "megatron_contract"), ids=relative)
def test_the_contract_imports_only_the_standard_library(path: Path) -> None:
    assert imported_packages(path) <= sys.stdlib_module_names | {"megatron_contract"}


@pytest.mark.parametrize("path", python_files("trainer-image", "megatron_trainer"), ids=relative)
def test_the_trainer_imports_nothing_of_the_operator(path: Path) -> None:
    forbidden = {"megatron_operator", "kopf", "kubernetes", "localcluster", "testkit", "tests"}
    assert not imported_packages(path) & forbidden


def test_the_order_lists_every_part_of_the_trainer() -> None:
    assert {part(path, TRAINER) for path in TRAINER_FILES} == TRAINER_MAY_IMPORT.keys()


@pytest.mark.parametrize("path", TRAINER_FILES, ids=relative)
def test_a_module_of_the_trainer_imports_only_earlier_parts(path: Path) -> None:
    own = part(path, TRAINER)
    assert imported_parts(path, TRAINER) - {own} <= TRAINER_MAY_IMPORT[own]


@pytest.mark.parametrize(
    "path", [*python_files("bench"), *python_files("demo"), *python_files("testkit")], ids=relative
)
def test_test_kit_benchmarks_and_demo_do_not_import_tests(path: Path) -> None:
    assert "tests" not in imported_packages(path)
