"""A pod that Kubernetes evicts for the taint of a device ends with a cause that names both."""

from typing import Any

import pytest
from megatron_contract.environment import CONTAINER_NAME
from megatron_operator.api.labels import LABEL_RECIPE, LABEL_ROLE
from megatron_operator.controller.pod_end_cache import PodEndCache
from megatron_operator.lifecycle.pod_termination import PodEnd
from megatron_operator.lifecycle.status_builder import RecipeKey
from megatron_operator.manifests.metadata import ROLE_TRAINER

RUN = RecipeKey("research", "run")
TAINT = "evicted from node-1: device gpu.nvidia.com/node-1/gpu-3 with taint xid=79:NoExecute"
KUBERNETES = "Device Taint manager: deleting due to NoExecute taint"


def evicted(reason: str = "DeletionByDeviceTaintManager", code: int | None = None) -> dict[str, Any]:
    """A worker that is being deleted, and has ended with an exit code or not."""
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": KUBERNETES}
    ended = {"name": CONTAINER_NAME, "state": {"terminated": {"exitCode": code, "reason": "Error"}}}
    metadata = {
        "name": "run-worker-0",
        "uid": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "deletionTimestamp": "2026-01-01T01:00:00Z",
        "labels": {LABEL_RECIPE: "run", LABEL_ROLE: ROLE_TRAINER, "training.kubeflow.org/job-name": "run"},
    }
    status = {"conditions": [condition], "containerStatuses": [] if code is None else [ended]}
    return {"metadata": metadata, "spec": {"nodeName": "node-1"}, "status": status}


def end_of(pod: dict[str, Any], cause: str | None) -> PodEnd:
    asked: list[str] = []

    def device_taints(node: str) -> str | None:
        asked.append(node)
        return cause

    cache = PodEndCache(device_taints)
    cache.add(RUN, pod)
    assert set(asked) <= {"node-1"}
    [end] = cache.merged(RUN, {}, None).values()
    return end


@pytest.mark.parametrize("code", [None, 143])
def test_the_cause_has_device_and_taint_however_the_pod_ended(code: int | None) -> None:
    end = end_of(evicted(code=code), TAINT)
    assert end.cause == f"worker-0: {TAINT}"
    assert (end.exit_code, end.voluntary, end.node) == (code, True, "node-1")


def test_other_ends_and_taints_that_are_not_known_keep_their_cause() -> None:
    assert end_of(evicted("EvictionByEvictionAPI"), TAINT).cause == f"worker-0: {KUBERNETES}"
    assert end_of(evicted(), None).cause == f"worker-0: {KUBERNETES}"
