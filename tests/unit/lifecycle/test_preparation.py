"""What becomes of a preparation that failed: the cause is that of the pod to blame."""

import json
from typing import Any

import pytest
from megatron_contract.progress import ProgressReport
from megatron_operator.api.conditions import Condition
from megatron_operator.lifecycle.children import set_stage_progress, stage_targets
from megatron_operator.lifecycle.progress_reading import ProgressReading
from megatron_operator.lifecycle.stages import PREPARATION, set_stage_failed
from megatron_operator.lifecycle.status_builder import StatusBuilder

JOB = {
    "metadata": {"name": "run-prepare"},
    "status": {"conditions": [{"type": "Failed", "status": "True", "message": "a pod failed"}]},
}


def pod(name: str, created: int, code: int | None, text: str = "", **status: Any) -> dict[str, Any]:
    metadata = {"name": f"run-prepare-{name}", "creationTimestamp": f"2026-01-01T00:00:0{created}Z"}
    if code is None:
        return {"metadata": metadata | {"deletionTimestamp": "2026-01-01T00:01:00Z"}, "status": status}
    message = json.dumps({"reason": "BadData", "message": text, "exitCode": code})
    ended = {"name": "prepare", "state": {"terminated": {"exitCode": code, "message": message}}}
    return {"metadata": metadata, "status": status | {"containerStatuses": [ended]}}


BAD = pod("1-bbb", 1, 65, "data.sources[0].key: /data/f:7 has no text")
ENDED = pod("2-ccc", 2, 143, "terminated")
DELETED = pod("3-ddd", 3, None)
DIED = pod("0-aaa", 0, 138, "worker died")


@pytest.mark.parametrize("pods", [[BAD, ENDED, DELETED], [DELETED, ENDED, DIED, BAD], [DIED, BAD]])
def test_the_pod_that_failed_the_job_is_reported_not_those_that_the_job_then_ended(
    pods: list[dict[str, Any]],
) -> None:
    status = builder()
    set_stage_failed(status, PREPARATION, JOB, pods)
    for kind in (Condition.PREPARED, Condition.FAILED):
        condition = status.condition(kind)
        assert condition is not None
        assert "1-bbb: data.sources[0].key: /data/f:7 has no text" in condition.message


def running(name: str, ip: str | None = "10.0.0.1", phase: str = "Running") -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"phase": phase} | ({"podIP": ip} if ip else {})}


def test_only_pods_that_run_are_asked_for_the_progress() -> None:
    pods = [running("a", phase="Succeeded"), running("b", ip=None), running("c"), {"metadata": {"name": "d"}}]
    assert [target.pod for target in stage_targets(pods)] == ["c"]


def builder() -> StatusBuilder:
    metadata = {"name": "r", "namespace": "d", "uid": "u", "generation": 1, "resourceVersion": "1"}
    return StatusBuilder.of({"metadata": metadata, "spec": {}}, 0.0)


def reading(**preparation: Any) -> ProgressReading:
    body = {"schema": 1, "phase": "preparing", "preparation": preparation}
    return ProgressReading(ProgressReport.parse(body), 1_000_000_000.0)


def test_the_status_has_what_is_done_of_how_much_and_until_when() -> None:
    status = builder()
    known = {"documents": 7, "bytesDone": 50, "bytesTotal": 200, "bytesPerSecond": 2.0, "secondsLeft": 7200.0}
    set_stage_progress(status, reading(**known))
    assert status.current.wire()["preparation"] == {
        "documents": 7,
        "bytesDone": 50,
        "bytesTotal": 200,
        "bytesPerSecond": 2.0,
        "eta": "2001-09-09T03:47:00Z",
    }
    before = status.current
    set_stage_progress(status, None)
    assert status.current == before


@pytest.mark.parametrize("left", [1e300, None, 0.0])
def test_what_a_hostile_pod_reports_stays_within_the_types(left: float | None) -> None:
    status = builder()
    set_stage_progress(status, reading(documents=-1, bytesDone=2**70, bytesTotal=9, secondsLeft=left))
    found = status.current.preparation
    assert found is not None
    assert (found.documents, found.bytes_done, found.bytes_total) == (0, 9, 9)
    assert (found.eta is None) == (left is None)
