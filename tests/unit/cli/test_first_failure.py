"""Which pod's log `megatron logs` prints."""

from typing import Any

import pytest
from megatron_operator.cli.first_failure import first_failed_pod, pod_of_rank

EARLY, INCIDENT, LATE = "2026-01-01T10:00:00Z", "2026-01-01T11:00:00Z", "2026-01-01T12:00:00Z"


def pod(kind: str, index: int = 0, born: str = EARLY, **container: Any) -> dict[str, Any]:
    labels = {"training.kubeflow.org/replica-type": kind, "training.kubeflow.org/replica-index": str(index)}
    name = f"run-{kind}-{index}"
    return {
        "metadata": {"name": name, "labels": labels, "creationTimestamp": born},
        "spec": {"nodeName": f"node-of-{name}"},
        "status": {"containerStatuses": [{"name": "pytorch", **container}]},
    }


def ended(time: str, code: int = 138, **more: Any) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": "Error", "finishedAt": time}} | more


def run(**incident: Any) -> dict[str, Any]:
    last = {"kind": "rank", "time": INCIDENT, "cause": "rank 3 was killed by SIGKILL"} | incident
    recovery = {"lastIncident": last} if incident else {}
    return {"status": {"plan": {"perNode": 2}, "recovery": recovery}}


def test_a_healthy_run_yields_the_master() -> None:
    found = first_failed_pod(run(), [pod("worker"), pod("master")])
    assert found is not None
    assert (found.pod, found.previous) == ("run-master-0", False)
    assert found.why == "nothing has failed; this is the master"


def test_a_run_without_pods_yields_none() -> None:
    assert first_failed_pod(run(pod="worker-0"), []) is None


def test_the_first_of_several_failed_pods_is_found() -> None:
    pods = [
        pod("master", state=ended(LATE, 140)),
        pod("worker", 0, state=ended("2026-01-01T11:59:58Z", 138)),
        pod("worker", 1, state=ended(LATE, 140)),
    ]
    found = first_failed_pod(run(), pods)
    assert found is not None
    assert found.pod == "run-worker-0"
    assert found.node == "node-of-run-worker-0"
    assert "exited with code 138" in found.why


def test_a_rank_that_failed_in_a_running_pod_yields_that_pod() -> None:
    found = first_failed_pod(run(pod="worker-0", rank=3), [pod("master"), pod("worker")])
    assert found is not None
    assert (found.pod, found.rank, found.previous) == ("run-worker-0", 3, False)
    assert "rank 3 was killed by SIGKILL" in found.why


def test_a_replaced_pod_yields_its_replacement_and_the_cause() -> None:
    found = first_failed_pod(run(pod="worker-0", rank=3), [pod("master"), pod("worker", born=LATE)])
    assert found is not None
    assert (found.pod, found.previous) == ("run-worker-0", False)
    assert "rank 3 was killed by SIGKILL" in found.why
    assert "that pod is gone, this one replaced it" in found.why


@pytest.mark.parametrize("failed_at", ["2026-01-01T10:59:55Z", "2026-01-01T11:00:01Z"])
def test_a_restarted_container_yields_its_previous_log(failed_at: str) -> None:
    restarted = pod("worker", state={"running": {"startedAt": failed_at}}, lastState=ended(failed_at))
    found = first_failed_pod(run(pod="worker-0"), [pod("master"), restarted])
    assert found is not None
    assert (found.pod, found.previous) == ("run-worker-0", True)


def test_a_failure_after_the_last_incident_takes_precedence() -> None:
    pods = [pod("master", state=ended(LATE)), pod("worker", state=ended("2026-01-01T10:30:00Z"))]
    found = first_failed_pod(run(pod="worker-0"), pods)
    assert found is not None
    assert found.pod == "run-master-0"


@pytest.mark.parametrize(("rank", "name"), [(0, "run-master-0"), (1, "run-master-0"), (5, "run-worker-1")])
def test_the_pod_of_a_rank_is_found(rank: int, name: str) -> None:
    found = pod_of_rank(run(), [pod("worker", 1), pod("master"), pod("worker", 0)], rank)
    assert found is not None
    assert found.pod == name


def test_a_rank_beyond_the_gang_has_no_pod() -> None:
    assert pod_of_rank(run(), [pod("master")], 2) is None


def replaced_by_its_job(index: int) -> list[dict[str, Any]]:
    """A failed pod of a JobSet that its Job keeps, and the one that the Job created in its place."""
    labels = {
        "jobset.sigs.k8s.io/jobset-name": "run",
        "jobset.sigs.k8s.io/replicatedjob-name": "worker",
        "jobset.sigs.k8s.io/job-index": str(index),
    }
    pods = []
    for suffix, born, phase in (("abcde", EARLY, "Failed"), ("xyzab", LATE, "Running")):
        metadata = {"name": f"run-worker-{index}-0-{suffix}", "labels": labels, "creationTimestamp": born}
        pods.append({"metadata": metadata, "spec": {}, "status": {"phase": phase}})
    return pods


@pytest.mark.parametrize("order", [1, -1])
def test_the_pod_of_a_rank_is_not_one_that_its_job_has_replaced(order: int) -> None:
    found = pod_of_rank(run(), [pod("master"), *replaced_by_its_job(0)[::order]], 2)
    assert found is not None
    assert found.pod == "run-worker-0-0-xyzab"
