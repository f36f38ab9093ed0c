"""While an edit waits, the run keeps its job: another one could not be created."""

from typing import Any

import pytest
from megatron_operator.controller.recipe_planner import Unplanned

from tests.unit.controller.simulated_run import Run

CLAIM = "data"
ELASTIC = {"elastic": {"minCount": 8, "shrinkAfter": 60, "growAfter": 60}}
LONG = 300
"""Seconds in which a shrunk run grows into a free node."""


def job(run: Run) -> Any:
    """UID of the run's job."""
    found = run.api.job()
    return None if found is None else found["metadata"]["uid"]


@pytest.fixture
def run(training_run: Run) -> Run:
    """An elastic run that trains on two of three nodes, of which the third is taken."""
    training_run.edit(recovery=ELASTIC)
    training_run.until(lambda: bool(training_run.status["observedGeneration"] == 2) and training_run.trains())
    training_run.cluster.nodes["node-2"].taken = True
    return training_run


@pytest.fixture
def shrunk(run: Run) -> Run:
    """The run after it has lost a node: it trains on the other one."""
    run.cluster.node_dies("node-1")
    run.until(lambda: run.trains(1), 1500)
    return run


def reconcile(run: Run, seconds: int) -> None:
    for _ in range(seconds):
        run.cluster.pass_time(1)
        run.operator.reconcile()


def edit(run: Run) -> None:
    """The edit names a claim that does not exist."""
    run.edit(data={"mockData": True, "volume": {"claimName": CLAIM}})
    run.until(lambda: run.condition("Prepared")["reason"] == "VolumeClaimMissing")


def test_a_shrunk_run_whose_edit_waits_for_a_claim_trains_on_though_it_could_grow(shrunk: Run) -> None:
    run, before = shrunk, job(shrunk)
    edit(run)
    run.cluster.nodes["node-2"].taken = False
    reconcile(run, LONG)
    assert run.status["recovery"]["elastic"]["larger"] == 16
    assert (job(run), run.trains(1)) == (before, True)
    run.api.claims[CLAIM] = {"metadata": {"name": CLAIM}}
    seen = set()

    def replaced() -> bool:
        seen.add(job(run))
        return job(run) not in (None, before) and run.trains(1)

    run.until(replaced)
    assert seen == {before, None, job(run)}, "one job replaces it"
    run.until(run.trains)


def test_a_run_whose_edit_waits_for_a_claim_is_not_shrunk_and_goes_on_with_the_next_node(run: Run) -> None:
    before = job(run)
    edit(run)
    run.cluster.node_dies("node-1")
    reconcile(run, 900)
    assert job(run) == before
    run.cluster.nodes["node-2"].taken = False
    run.until(run.trains)
    assert job(run) == before


def test_a_shrunk_run_whose_edit_is_being_planned_trains_on_though_it_could_grow(
    shrunk: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, before = shrunk, job(shrunk)

    async def pending(*_: Any, **__: Any) -> Unplanned:
        return Unplanned.PENDING

    with monkeypatch.context() as patch:
        patch.setattr(run.operator._reconciler._planner, "plan", pending)
        run.edit(env={"DEBUG": "1"})
        run.cluster.nodes["node-2"].taken = False
        reconcile(run, LONG)
        assert (job(run), run.trains(1)) == (before, True)
    run.until(run.trains)
