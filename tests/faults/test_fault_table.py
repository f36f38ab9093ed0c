"""Whatever happens to a run, it ends as if nothing had happened, and says what did."""

import pytest
from localcluster import Cluster as Machine

from testkit.faults.injections import Scene
from testkit.faults.rows import ROWS, Row
from testkit.faults.table import ToldWrongly, play
from tests.faults.conftest import ALL, Runs


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if ALL or not row.extended],
    ids=lambda row: row.name,
)
def test_a_run_survives(row: Row, runs: Runs, machine: Machine) -> None:
    try:
        play(Scene(runs.one(row), machine), row, runs.expected)
    except ToldWrongly:
        raise
    except BaseException:
        runs.drop()
        raise


def test_the_last_run_ends_as_if_nothing_had_happened(runs: Runs) -> None:
    runs.end()
