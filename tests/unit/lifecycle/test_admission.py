"""Why Kueue has not admitted a job, in the message of a queued run."""

from typing import Any

import pytest
from megatron_operator.api.conditions import Condition
from megatron_operator.api.reasons import Reason
from megatron_operator.lifecycle.admission import (
    CREATION,
    FIRST_REREAD,
    SLOWEST_REREAD,
    reason_not_admitted,
    reread_after,
)
from megatron_operator.lifecycle.job_status import queued_message
from megatron_operator.lifecycle.status_builder import StatusBuilder

CREATED = 1_767_225_600.0
NO_QUOTA = "couldn't assign flavors to pod set master: insufficient quota for nvidia.com/gpu"
RACK = "topology.kubernetes.io/rack"


def job(**labels: str) -> dict[str, Any]:
    return {
        "kind": "PyTorchJob",
        "metadata": {"name": "run", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": labels},
    }


def workload(*conditions: tuple[str, str, str], **spec: Any) -> dict[str, Any]:
    listed = [{"type": kind, "status": status, "message": text} for kind, status, text in conditions]
    return {"spec": spec, "status": {"conditions": listed}}


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (workload(), ""),
        (workload(("QuotaReserved", "False", NO_QUOTA)), NO_QUOTA),
        (
            workload(
                ("QuotaReserved", "False", "no\n  room"),
                podSets=[{"topologyRequest": {"required": RACK}}] * 2,
            ),
            f"no room; all pods must share {RACK}",
        ),
        (
            workload(
                ("QuotaReserved", "False", "no room"), podSets=[{"topologyRequest": {"preferred": RACK}}]
            ),
            "no room",
        ),
        (
            workload(("QuotaReserved", "True", ""), ("Admitted", "False", "not all checks are ready")),
            "not all checks are ready",
        ),
        (
            workload(("QuotaReserved", "False", NO_QUOTA), active=False),
            "its Workload is deactivated (spec.active)",
        ),
    ],
    ids=["none yet", "quota", "required topology", "preferred topology", "admission checks", "deactivated"],
)
def test_the_reason_is_what_kueue_reports_of_the_workload(found: dict[str, Any], reason: str) -> None:
    assert reason_not_admitted(job(), [found], CREATED) == reason


def test_a_job_without_a_workload_is_none_that_kueue_manages_once_it_has_had_time_to_create_one() -> None:
    assert reason_not_admitted(job(), [], CREATED + CREATION - 1) == ""
    assert reason_not_admitted(job(), [], CREATED + CREATION) == (
        "Kueue has created no Workload for it; does Kueue manage PyTorchJobs?"
    )
    ranked = job(**{"kueue.x-k8s.io/priority-class": "high"})
    assert reason_not_admitted(ranked, [], CREATED + CREATION).endswith(
        ", and is there a WorkloadPriorityClass high?"
    )


def test_a_workload_is_read_less_often_the_longer_its_job_waits() -> None:
    waits = [reread_after(waited) for waited in (0, 60, 600, 86_400)]
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (FIRST_REREAD, SLOWEST_REREAD)


def test_a_reason_stays_in_the_message_until_it_is_read_again() -> None:
    metadata = {"name": "run", "namespace": "research", "uid": "u", "generation": 1, "resourceVersion": "1"}
    status = StatusBuilder.of({"metadata": metadata, "spec": {}}, CREATED)

    def report(queue: str, held_back: str | None) -> str:
        message = queued_message(status, Condition.RUNNING, queue, held_back)
        status.set_condition(Condition.RUNNING, False, Reason.QUEUED, message)
        return message

    assert report("research", None) == "waits for admission by queue research"
    assert report("research", "no quota") == "waits for admission by queue research: no quota"
    assert report("research", None) == "waits for admission by queue research: no quota"
    assert report("research-2", None) == "waits for admission by queue research-2"
    report("research", "no quota")
    assert report("research", "") == "waits for admission by queue research"
