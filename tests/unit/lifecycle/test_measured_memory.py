"""Memory that pods report, in the status: the most of each pipeline stage under one layout."""

from typing import Any

import pytest
from megatron_contract.limits import MAX_STAGES
from megatron_contract.progress import PROGRESS_SCHEMA, ProgressReport, ReportedMemory
from megatron_operator.api.labels import ANNOTATION_HASH
from megatron_operator.api.memory_status import StageMemory
from megatron_operator.lifecycle.job_status import adopt_job
from megatron_operator.lifecycle.measured_memory import merge
from megatron_operator.lifecycle.progress_reading import merge_reports

from testkit.example_runs import training_run
from tests.unit.lifecycle.reconciling import reconcile


@pytest.fixture
def planned(run: Any) -> Any:
    """The run with a plan in its status."""
    run.body["status"] = {"plan": training_run("run")["status"]["plan"]}
    return run


def memory(rank: int, stage: int, size: int) -> dict[str, int]:
    return {"rank": rank, "stage": stage, "bytes": size}


def stages(status: Any) -> list[tuple[int, int, int]]:
    return [(each.stage, each.rank, each.bytes) for each in status.current.memory.stages]


def test_the_status_has_the_most_that_each_stage_has_reserved(planned: Any) -> None:
    planned.report(iteration=50, memory=[memory(0, 0, 70), memory(9, 1, 60)])
    status = reconcile(planned)
    assert stages(status) == [(0, 0, 70), (1, 9, 60)]
    assert status.current.memory.fullest == StageMemory(stage=0, rank=0, bytes=70)
    planned.report(iteration=51, generation=2, memory=[memory(1, 0, 50), memory(8, 1, 65)])
    assert stages(reconcile(planned)) == [(0, 0, 70), (1, 8, 65)], "ranks that start again need less at first"


def test_pods_that_report_none_leave_what_is_known(planned: Any) -> None:
    planned.report(iteration=50)
    assert reconcile(planned).current.memory is None
    planned.report(iteration=51, memory=[memory(0, 0, 70)])
    reconcile(planned)
    planned.report(iteration=52)
    assert stages(reconcile(planned)) == [(0, 0, 70)]


def test_what_another_layout_needed_is_not_kept(planned: Any) -> None:
    planned.report(iteration=50, memory=[memory(0, 0, 70)])
    current = reconcile(planned).current
    smaller = current.plan.model_copy(update={"micro_batch_size": current.plan.micro_batch_size + 1})
    new = merge(current.memory, [ReportedMemory(1, 0, 50)], smaller, current.memory.job)
    assert new is not None
    assert [each.bytes for each in new.stages] == [50]
    assert new.layout != current.memory.layout


def test_what_another_job_needed_is_not_kept(planned: Any) -> None:
    """The same layout needs more or less with another sequence length or number format."""
    planned.body["status"]["job"] = {"name": "run", "uid": "1", "hash": "first"}
    planned.report(iteration=50, memory=[memory(0, 0, 70)])
    status = reconcile(planned)
    assert status.current.memory.job == "first"
    new = merge(status.current.memory, [ReportedMemory(1, 0, 50)], status.current.plan, "second")
    assert new is not None
    assert [each.bytes for each in new.stages] == [50]


@pytest.mark.parametrize(("digest", "kept"), [("first", True), ("second", False)])
def test_a_job_of_another_hash_starts_without_measured_memory(planned: Any, digest: str, kept: bool) -> None:
    planned.body["status"]["job"] = {"name": "run", "uid": "1", "hash": "first"}
    planned.report(iteration=50, memory=[memory(0, 0, 70)])
    status = reconcile(planned)
    metadata = {"name": "run", "uid": "2", "annotations": {ANNOTATION_HASH: digest}}
    adopt_job(status, {"kind": "PyTorchJob", "metadata": metadata})
    assert (status.current.memory is not None) is kept


def test_stages_that_the_plan_does_not_have_are_left_out(planned: Any) -> None:
    """A report that gives a stage wrong must not fail each reconcile."""
    planned.report(iteration=50, memory=[memory(0, 0, 70), memory(1, 5, 90)])
    assert planned.body["status"]["plan"]["pipelineModelParallelSize"] == 2
    assert stages(reconcile(planned)) == [(0, 0, 70)]


def test_of_very_many_stages_the_fullest_stay(planned: Any) -> None:
    planned.report(iteration=50)
    plan = reconcile(planned).current.plan.model_copy(
        update={"pipeline_model_parallel_size": 2 * MAX_STAGES, "stage_layers": [1] * 2 * MAX_STAGES}
    )
    known = None
    for first in (0, MAX_STAGES):
        reported = [ReportedMemory(stage, stage, 1000 - stage) for stage in range(first, first + MAX_STAGES)]
        known = merge(known, reported, plan, "first")
    assert known is not None
    assert [each.stage for each in known.stages] == list(range(MAX_STAGES))
    known = merge(known, [ReportedMemory(200, 200, 2000)], plan, "first")
    assert known is not None
    assert (len(known.stages), known.fullest.stage) == (MAX_STAGES, 200)


def test_memory_of_pods_that_do_not_know_each_other_is_merged() -> None:
    reports = {
        0: ProgressReport(PROGRESS_SCHEMA, "training", generation=1),
        1: ProgressReport(PROGRESS_SCHEMA, "training", generation=1, memory=(ReportedMemory(9, 1, 60),)),
        2: ProgressReport(PROGRESS_SCHEMA, "training", generation=1, memory=(ReportedMemory(0, 0, 70),)),
    }
    assert merge_reports(reports).memory == (ReportedMemory(0, 0, 70), ReportedMemory(9, 1, 60))
