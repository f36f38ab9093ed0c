"""Which pods of a run have the PriorityClass with which it recovers."""

from collections.abc import Iterator

import pytest
from megatron_operator.api.platform import PlatformConfig

from tests.unit.controller.simulated_run import Run, run_on

CLASS = "megatron-recovery"
PLATFORM = PlatformConfig.model_validate(
    {"accelerators": {"h100-sxm": {}}, "image": "trainer", "recoveryPriorityClassName": CLASS}
)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    with run_on(PLATFORM, monkeypatch) as run:
        yield run


def classes(run: Run) -> set[str | None]:
    """Those of pods that the job would create now."""
    job = run.api.job()
    assert job is not None
    replicas = job["spec"]["pytorchReplicaSpecs"].values()
    return {each["template"]["spec"].get("priorityClassName") for each in replicas}


def another_job(run: Run) -> None:
    """Wait until the run has another job than now."""
    before = run.cluster.job
    run.until(lambda: run.cluster.job not in (None, before))


def test_pods_have_it_that_replace_those_of_a_gang_that_has_run(run: Run) -> None:
    run.until(lambda: run.cluster.job is not None)
    assert classes(run) == {None}
    run.until(run.trains)
    assert classes(run) == {CLASS}
    run.cluster.delete_now(run.cluster.pods[1])
    run.until(lambda: bool(run.incidents) and run.trains())
    assert [each["kind"] for each in run.incidents] == ["pod"]
    assert classes(run) == {CLASS}


def test_all_pods_of_a_run_that_the_operator_has_resized_have_it(run: Run) -> None:
    run.edit(recovery={"elastic": {"minCount": 8, "shrinkAfter": 60, "growAfter": 60}})
    run.until(lambda: run.status.get("observedGeneration") == 2 and run.trains())
    run.cluster.nodes["node-2"].taken = True
    run.cluster.node_dies("node-1")
    another_job(run)
    assert classes(run) == {CLASS}


def test_pods_of_a_run_that_shrinks_before_it_has_trained_wait_as_others_do(run: Run) -> None:
    for node in ("node-1", "node-2"):
        run.cluster.nodes[node].taken = True
    run.edit(recovery={"elastic": {"minCount": 8, "shrinkAfter": 60, "growAfter": 60}})
    run.until(lambda: run.cluster.job is not None)
    another_job(run)
    assert run.status["recovery"]["elastic"]["count"] == 8
    assert classes(run) == {None}


@pytest.mark.parametrize("edit", ["resumed after a suspension", "another count"])
def test_pods_of_a_run_that_its_user_has_changed_wait_as_others_do(run: Run, edit: str) -> None:
    run.until(run.trains)
    if edit == "another count":
        run.edit_count(8)
    else:
        run.edit(suspend=True)
        run.until(lambda: run.status["phase"] == "Suspended" and not run.cluster.pods)
        run.edit(suspend=False)
    another_job(run)
    assert classes(run) == {None}
