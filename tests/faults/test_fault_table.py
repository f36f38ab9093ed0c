"""A run survives every fault of the table with unchanged losses, and its status reports what was hit."""

import pytest

from testkit.faults.backends import rows_with
from testkit.faults.rows import ROWS, Row
from testkit.run_pool import RunPool
from tests.faults.conftest import ALL, BACKEND


def selected_rows() -> list[Row]:
    """The rows to play: with PyTorchJob the quick ones or all, with another kind of job those for it."""
    if BACKEND in ("jobset", "trainjob"):
        return list(rows_with(BACKEND))
    return [row for row in ROWS if ALL or not row.extended]


@pytest.mark.parametrize(
    "row",
    selected_rows(),
    ids=lambda row: row.name,
)
def test_a_run_survives(row: Row, runs: RunPool) -> None:
    runs.play(row)


def test_the_last_run_finishes_with_the_losses_of_an_undisturbed_run(runs: RunPool) -> None:
    runs.finish()
