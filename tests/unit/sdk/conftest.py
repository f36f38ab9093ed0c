"""Runs against an API server within the process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from megatron_operator.sdk import Connection, Recipe, Run


@pytest.fixture
def connection(kubeconfig: Path) -> Iterator[Connection]:
    with Connection(kubeconfig=kubeconfig) as connection:
        yield connection


@pytest.fixture
def recipe() -> Recipe:
    return Recipe("tiny-gpt", name="tiny", accelerator="cpu", count=4, data={"mockData": True})


@pytest.fixture
def run(recipe: Recipe, connection: Connection) -> Run:
    """A run that has just been applied."""
    return Run.apply(recipe, connection)
