"""Runs against an API server within the process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from megatron_operator.sdk import Connection, Recipe, Run

from tests.unit.sdk.api_stand_in import ApiStandIn


@pytest.fixture
def api() -> Iterator[ApiStandIn]:
    with ApiStandIn().running() as server:
        yield server


@pytest.fixture
def kubeconfig(api: ApiStandIn, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    api.write_kubeconfig(path)
    return path


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
