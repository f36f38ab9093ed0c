"""The operator over a simulated cluster: edits by a user and jumps of the clock."""

import pytest
from megatron_operator.lifecycle.capacity import LONGEST_CLAIM

from tests.unit.controller.simulated_run import CLAIM, Run

HOUR = 3600.0


@pytest.fixture
def run(training_run: Run) -> Run:
    return training_run


@pytest.mark.parametrize("writes", [None, *range(6)])
def test_an_edited_count_is_one_resize_wherever_the_operator_dies(run: Run, writes: int | None) -> None:
    run.edit_count(8)
    run.operator.die_after(writes)
    run.until(lambda: run.trains(pods=1))
    assert [each["kind"] for each in run.incidents] == ["resize"]
    assert run.incidents[0]["cause"] == "accelerator.count was edited: 16 before, 8 now"
    assert run.incidents[0]["recoveredAt"]
    assert run.status["recovery"].get("restarts", 0) == 0
    assert "elastic" not in run.status["recovery"], "it has the requested count"


def test_an_edited_count_is_recorded_even_if_a_claim_is_missing_after_a_restart(run: Run) -> None:
    run.edit_count(8)
    # It deletes the job, and dies before the status records why.
    run.operator.die_after(1)
    run.until(lambda: run.cluster.job is None)
    assert not run.incidents
    claim = run.api.claims.pop(CLAIM)
    run.until(lambda: "VolumeClaimMissing" in str(run.status["conditions"]))
    run.api.claims[CLAIM] = claim
    run.until(lambda: run.trains(pods=1))
    assert [each["kind"] for each in run.incidents] == ["resize"]


def test_an_edit_of_another_field_is_no_resize(run: Run) -> None:
    before = run.cluster.job
    run.edit(checkpoint=run.api.recipe["spec"]["checkpoint"] | {"saveInterval": 77})
    run.until(lambda: run.cluster.job not in (None, before) and run.trains())
    assert "resize" not in {each["kind"] for each in run.incidents}


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
@pytest.mark.parametrize("recorded", [False, True], ids=["before it is recorded", "after it is recorded"])
def test_a_clock_jump_during_a_recovery_adds_no_incident(run: Run, ahead: float, recorded: bool) -> None:
    run.cluster.delete_now(run.cluster.pods[1])
    if recorded:
        run.until(lambda: bool(run.incidents))
    run.api.ahead = ahead
    generation = run.cluster.generation
    run.until(lambda: run.cluster.generation > generation and run.trains())
    run.until(lambda: "recoveredAt" in run.incidents[-1])
    assert [each["kind"] for each in run.incidents] == ["pod"]
    assert run.status["recovery"]["restarts"] == 1
    run.api.ahead = 0.0
    run.until(lambda: run.cluster.iteration >= run.cluster.resumed_from + 100)
    assert [each["kind"] for each in run.incidents] == ["pod"], "and correcting it adds none"


@pytest.mark.parametrize("writes", [None, *range(4)])
def test_a_suspended_run_continues_from_its_checkpoint_wherever_the_operator_dies(
    run: Run, writes: int | None
) -> None:
    saved = run.cluster.checkpoint
    run.edit(suspend=True)
    run.operator.die_after(writes)
    run.until(lambda: run.status["phase"] == "Suspended" and not run.cluster.pods)
    assert run.cluster.job is None
    run.edit(suspend=False)
    run.until(run.trains)
    assert run.cluster.resumed_from >= saved


def test_a_run_with_an_invalid_spec_can_be_suspended(run: Run) -> None:
    valid = run.api.recipe["spec"]["accelerator"]
    run.edit(suspend=True, accelerator=valid | {"count": 12})
    run.until(lambda: run.cluster.job is None and not run.cluster.pods)
    run.until(lambda: run.status["phase"] == "Refused")
    run.edit(suspend=False, accelerator=valid)
    run.until(run.trains)


def test_an_invalid_edit_does_not_stop_a_running_job(run: Run) -> None:
    before = run.cluster.job
    run.edit_count(12)
    run.until(lambda: any(each["reason"] == "Refused" for each in run.status["conditions"]))
    run.until(run.trains)
    assert run.cluster.job is before


@pytest.mark.parametrize(("waiting", "grows"), [(0, True), (2, False), (3, True)])
def test_a_run_grows_unless_a_waiting_gang_would_take_its_nodes(run: Run, waiting: int, grows: bool) -> None:
    """Two nodes are ready, of which the run has one; a gang of three would not be bound to them either."""
    run.edit(recovery={"elastic": {"minCount": 8, "shrinkAfter": 60, "growAfter": 60}})
    run.until(lambda: run.status["observedGeneration"] == 2 and run.trains())
    run.cluster.nodes["node-2"].taken = True
    run.cluster.node_dies("node-1")
    run.until(lambda: run.trains(pods=1))
    run.api.waiting_pods, run.api.waiting_since = waiting, run.cluster.now
    run.cluster.node_returns("node-1")
    if not grows:
        with pytest.raises(AssertionError, match="not reached"):
            run.until(lambda: "larger" in run.status["recovery"]["elastic"], seconds=500)
        run.api.waiting_pods = 0
    run.until(run.trains)
    assert [each["kind"] for each in run.incidents] == ["node", "resize", "resize"]


def test_a_run_grows_in_spite_of_a_gang_that_is_not_bound_for_long(run: Run) -> None:
    run.edit(recovery={"elastic": {"minCount": 8, "shrinkAfter": 60, "growAfter": 60}})
    run.until(lambda: run.status["observedGeneration"] == 2 and run.trains())
    run.cluster.nodes["node-2"].taken = True
    run.cluster.node_dies("node-1")
    run.until(lambda: run.trains(pods=1))
    run.api.waiting_pods, run.api.waiting_since = 2, run.cluster.now
    run.cluster.node_returns("node-1")
    run.until(lambda: "larger" in run.status["recovery"]["elastic"], seconds=int(LONGEST_CLAIM) + 120)
    assert run.cluster.now - run.api.waiting_since >= LONGEST_CLAIM
    run.until(run.trains)
