"""Reads the product's sources for the names that other programs depend on."""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PRODUCT = (
    ROOT / "operator" / "megatron_operator",
    ROOT / "contract" / "megatron_contract",
    ROOT / "trainer-image" / "megatron_trainer",
)

Lock = Callable[[str, list[str]], None]


@pytest.fixture
def lock(golden: Any) -> Lock:
    """Compares lines with a file beside this one; `make golden` rewrites it."""

    def check(name: str, lines: list[str]) -> None:
        golden.check(HERE / name, "".join(f"{line}\n" for line in lines))

    return check


@pytest.fixture(scope="session")
def string_constants() -> frozenset[str]:
    """Every string literal of operator, contract and trainer, docstrings included."""
    return frozenset(
        node.value
        for package in PRODUCT
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
