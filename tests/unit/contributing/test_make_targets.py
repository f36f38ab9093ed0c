"""What a make target runs imports nothing that its own set-up does not install."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCES = ("bench", "demo", "scripts", "testkit", "tests")
"""Folders with the modules of targets; what is elsewhere is installed by the set-up."""
TARGET = re.compile(r"^([\w-]+): setup ##.*\n((?:\t.*\n)+)", re.MULTILINE)
TRAINER = "megatron_trainer"
"""The package that only setup-trainer installs."""


@cache
def imports(path: Path) -> frozenset[str]:
    """Names of the modules that a file imports when it is imported."""
    found: set[str] = set()
    pending: list[ast.stmt] = list(ast.parse(path.read_text()).body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Try) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test)
        ):
            pending += node.body
    return frozenset(found)


def file_of(module: str) -> Path | None:
    """The file of a module of SOURCES, or None."""
    if module.partition(".")[0] not in SOURCES:
        return None
    path = ROOT / module.replace(".", "/")
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.exists()), None)


def chain_to_the_trainer(start: Path) -> list[str]:
    """Files from `start` to one that imports the trainer, each imported by the one before; or none."""
    pending, seen = [[start]], {start}
    while pending:
        chain = pending.pop(0)
        names = imports(chain[-1])
        if any(name.partition(".")[0] == TRAINER for name in names):
            return [str(each.relative_to(ROOT)) for each in chain]
        for path in filter(None, map(file_of, names)):
            if path not in seen:
                seen.add(path)
                pending.append([*chain, path])
    return []


def started_files(commands: str) -> Iterator[Path]:
    """Files that the commands of a target start, and the test files of folders that they name."""
    for module in re.findall(r"-m ((?:bench|demo)[\w.]*)", commands):
        path = file_of(module)
        yield ROOT / module / "__main__.py" if path and path.name == "__init__.py" else path or ROOT / module
    for name in re.findall(r"\b((?:tests|scripts)/[\w/.]+)", commands):
        path = ROOT / name
        yield from path.rglob("*.py") if path.is_dir() else [path] if path.suffix == ".py" else []


TARGETS = {
    name: commands
    for name, commands in TARGET.findall((ROOT / "Makefile").read_text())
    if "PYTHONPATH=.:trainer-image" not in commands
}


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_without_the_trainers_packages_does_not_import_them(name: str) -> None:
    for path in started_files(TARGETS[name]):
        assert path.exists(), path
        assert not (chain := chain_to_the_trainer(path)), (
            f"make {name} needs setup-trainer: {' -> '.join(chain)}"
        )


def test_the_trainers_package_is_found_behind_other_modules() -> None:
    chain = chain_to_the_trainer(ROOT / "tests/fine_tuning/test_chats.py")
    assert chain[0] == "tests/fine_tuning/test_chats.py"
    assert chain[-1] == "testkit/watched_run.py"


def skipped_for() -> list[tuple[str, str]]:
    """Test files that need Megatron-Bridge, with the make target that the reason of their skip names."""
    return [
        (str(path.relative_to(ROOT)), target)
        for folder in ("bridge", "trainer")
        for path in sorted((ROOT / "tests" / folder).glob("test_*.py"))
        for target in sorted(set(re.findall(r"run make ([\w-]+)\"", path.read_text())))
    ]


def test_a_test_whose_skip_names_a_target_is_run_by_it() -> None:
    makefile, found = (ROOT / "Makefile").read_text(), skipped_for()
    assert ("tests/trainer/test_packing.py", "bridge-training") in found
    for path, target in found:
        rule = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
        assert rule is not None, f"{path} names make {target}, which does not exist"
        named = re.findall(r"\btests/[\w/.]+", rule[1])
        assert any(path == each or path.startswith(f"{each}/") for each in named), (
            f"make {target} does not run {path}"
        )
