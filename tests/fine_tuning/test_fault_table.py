"""A run that Megatron-Bridge trains survives the faults of its rows with unchanged losses."""

from pathlib import Path

import pytest
from localcluster import Cluster

from testkit.faults.bridge_rows import BRIDGE_ROWS
from testkit.faults.rows import Row
from testkit.kubectl import Kubectl
from testkit.run_pool import RunPool
from tests.faults.conftest import ALL

RECIPE = Path(__file__).with_name("all_weights.yaml")
ITERATIONS, ITERATIONS_OF_ALL = 100, 400


@pytest.fixture(scope="module")
def runs(kubectl: Kubectl) -> RunPool:
    """The runs, after one undisturbed run whose losses and samples all others must repeat."""
    iterations = ITERATIONS_OF_ALL if ALL else ITERATIONS
    runs = RunPool(kubectl, Cluster(quiet=True), iterations, file=RECIPE)
    runs.record_reference()
    return runs


@pytest.mark.parametrize(
    "row", [row for row in BRIDGE_ROWS if ALL or not row.extended], ids=lambda row: row.name
)
def test_a_run_survives(row: Row, runs: RunPool) -> None:
    runs.play(row)


def test_the_last_run_finishes_with_the_losses_of_an_undisturbed_run(runs: RunPool) -> None:
    runs.finish()
