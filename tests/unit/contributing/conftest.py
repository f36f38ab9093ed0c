"""A copy of the operator's package to which a test adds something, as CONTRIBUTING.md describes it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


class PackageCopy:
    """The operator's sources in a temporary directory, and the commands that run on them."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "megatron_operator"
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "operator" / "megatron_operator", self.path, ignore=ignore)

    def write(self, name: str, text: str) -> None:
        """Create a file of the package, or replace it."""
        (self.path / name).write_text(text)

    def append(self, name: str, text: str) -> None:
        """Add text at the end of a file."""
        with (self.path / name).open("a") as file:
            file.write(text)

    def insert_before(self, name: str, pattern: str, text: str) -> None:
        """Add text before the first line that matches."""
        self._insert(name, pattern, text, after=False)

    def insert_after(self, name: str, pattern: str, line: str) -> None:
        """Add a line after the first one that matches."""
        self._insert(name, pattern, f"{line}\n", after=True)

    def _insert(self, name: str, pattern: str, added: str, *, after: bool) -> None:
        text = (self.path / name).read_text()
        found = re.search(rf"{pattern}.*\n", text, re.MULTILINE)
        assert found is not None, f"{name} has no line like {pattern}"
        at = found.end() if after else found.start()
        self.write(name, text[:at] + added + text[at:])

    def python(self, code: str) -> str:
        """Standard output of a program that imports this copy."""
        environment = os.environ | {"PYTHONPATH": str(self.path.parent), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def megatron(self, *words: str) -> str:
        """Standard output of a `megatron` command."""
        return self.python(f"from megatron_operator.cli.main import cli; cli({list(words)!r})")


@pytest.fixture
def package(tmp_path: Path) -> PackageCopy:
    copy = PackageCopy(tmp_path)
    found = copy.python("import megatron_operator; print(megatron_operator.__path__[0])")
    assert found.strip() == str(copy.path), "the copy is imported, not the checkout"
    return copy
