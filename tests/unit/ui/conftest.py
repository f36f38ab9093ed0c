"""The page over example runs, and over an API server within the process."""

from collections.abc import Iterator
from typing import Any

import pytest
from megatron_operator.ui.access import KeyAccess
from megatron_operator.ui.app import Settings, application
from megatron_operator.ui.published import PublishedRecipes
from starlette.testclient import TestClient

from testkit.example_runs import NOW, ExampleRuns, example_runs

KEY = "k3y"


@pytest.fixture
def runs() -> ExampleRuns:
    return example_runs()


@pytest.fixture
def page(runs: ExampleRuns) -> Iterator[TestClient]:
    """The page for someone who has signed in and may read everything."""
    options: dict[str, Any] = {"now": lambda: NOW}
    app = application(Settings(runs, KeyAccess(KEY), PublishedRecipes(None, None), **options))
    with TestClient(app, headers={"Authorization": f"Bearer {KEY}"}) as client:
        yield client
