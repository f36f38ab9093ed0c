"""Fixtures of the controller's tests."""

from collections.abc import Iterator

import pytest

from tests.unit.controller.simulated_run import Run


@pytest.fixture
def training_run() -> Iterator[Run]:
    """A run that trains on two pods."""
    run = Run()
    run.until(run.trains)
    yield run
    run.operator.close()
