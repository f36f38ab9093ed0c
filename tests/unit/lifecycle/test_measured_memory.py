"""Memory that pods report, in the status: the most of each pipeline stage under one layout."""

from typing import Any

import pytest
from megatron_contract.progress import PROGRESS_SCHEMA, ProgressReport, ReportedMemory
from megatron_operator.api.memory_status import StageMemory
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
    new = merge(current.memory, [ReportedMemory(1, 0, 50)], smaller)
    assert new is not None
    assert [each.bytes for each in new.stages] == [50]
    assert new.layout != current.memory.layout


def test_memory_of_pods_that_do_not_know_each_other_is_merged() -> None:
    reports = {
        0: ProgressReport(PROGRESS_SCHEMA, "training", generation=1),
        1: ProgressReport(PROGRESS_SCHEMA, "training", generation=1, memory=(ReportedMemory(9, 1, 60),)),
        2: ProgressReport(PROGRESS_SCHEMA, "training", generation=1, memory=(ReportedMemory(0, 0, 70),)),
    }
    assert merge_reports(reports).memory == (ReportedMemory(0, 0, 70), ReportedMemory(9, 1, 60))
