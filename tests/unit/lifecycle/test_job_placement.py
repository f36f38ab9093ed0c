"""Pods of Jobs without accelerators that have no node: the message, and when the Job is replaced."""

from collections.abc import Collection
from typing import Any

import pytest
from megatron_operator.api.reasons import Reason
from megatron_operator.lifecycle.job_placement import is_placed_otherwise, with_platform_field
from megatron_operator.lifecycle.node_state import Taint
from megatron_operator.lifecycle.pod_diagnosis import Diagnosis

GPU = Taint("nvidia.com/gpu", "present", "NoSchedule")
UNTOLERATED = "1 pod has no node; x: 0/2 nodes are available: 2 node(s) had untolerated taint(s)."
FIELD = "platform.cpuJobs.tolerations"


def job(placement: str | None = None, **spec: Any) -> dict[str, Any]:
    annotations = {} if placement is None else {"megatron.training/placement": placement}
    return {"metadata": {"annotations": annotations}, "spec": {"template": {"spec": spec}}}


def message(*taints: Taint, tolerations: list[dict[str, Any]] | None = None) -> str:
    """What is added to the problem of a pod that taints keep away."""
    return added(taints, tolerations)


def added(taints: Collection[Taint] | None, tolerations: list[dict[str, Any]] | None = None) -> str:
    pods = [{"spec": {"tolerations": tolerations or []}}]
    found = Diagnosis(Reason.UNSCHEDULABLE, UNTOLERATED)
    explained = with_platform_field(found, job(), pods, taints)
    assert explained.reason is Reason.UNSCHEDULABLE
    assert explained.message.startswith(UNTOLERATED)
    return explained.message.removeprefix(UNTOLERATED).removeprefix("; ")


def test_the_taints_and_the_field_of_the_platform_are_named() -> None:
    spot = Taint("cloud.google.com/gke-spot", "true", "NoSchedule")
    assert message(GPU) == f"nodes with taints nvidia.com/gpu:NoSchedule take it once {FIELD} has these"
    assert "taints cloud.google.com/gke-spot:NoSchedule, nvidia.com/gpu:NoSchedule take" in message(GPU, spot)


def test_taints_that_are_tolerated_or_are_no_administrators_are_not_named() -> None:
    cordoned = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
    control_plane = Taint("node-role.kubernetes.io/control-plane", "", "NoSchedule")
    pool = Taint("pool", "cpu", "NoExecute")
    tolerated = [{"key": "pool", "operator": "Exists"}]
    expected = f"nodes with taints nvidia.com/gpu:NoSchedule take it once {FIELD} has these"
    assert message(GPU, cordoned, control_plane, pool, tolerations=tolerated) == expected


@pytest.mark.parametrize(
    "key",
    [
        "node-role.kubernetes.io/control-plane",
        "ToBeDeletedByClusterAutoscaler",
        "karpenter.sh/disrupted",
        "cloud.google.com/impending-node-termination",
    ],
)
def test_nothing_is_added_where_no_taint_is_one_to_tolerate(key: str) -> None:
    """Of the control plane, and of nodes that are about to go: another node lacks something else."""
    assert message(Taint(key, "", "NoSchedule")) == ""
    assert message() == ""


def test_the_field_is_named_where_nodes_are_not_read_and_many_taints_are_counted() -> None:
    assert added(None) == f"nodes with taints take it once {FIELD} has these"
    many = (Taint(f"pool-{number}", "", "NoSchedule") for number in range(7))
    assert "pool-3:NoSchedule, and 3 others take it" in message(*many)


def test_labels_that_no_node_has_are_named_with_their_field() -> None:
    text = (
        "1 pod has no node; x: 0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."
    )
    found = with_platform_field(
        Diagnosis(Reason.UNSCHEDULABLE, text), job(nodeSelector={"pool": "cpu"}), [{}], [GPU]
    )
    assert found.message == f"{text}; platform.cpuJobs.nodeSelector requires pool=cpu"
    of_kueue = with_platform_field(Diagnosis(Reason.UNSCHEDULABLE, text), job(), [{}], [GPU])
    assert of_kueue.message == text, "labels that a queue's flavor adds are not the platform's"


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (Reason.UNSCHEDULABLE, "1 pod has no node; x: 0/2 nodes are available: 2 Insufficient memory."),
        (Reason.IMAGE_PULL_FAILED, "x: ErrImagePull: registry/taint:1 not found"),
    ],
)
def test_other_problems_stay_as_they_are(reason: Reason, text: str) -> None:
    found = Diagnosis(reason, text)
    assert with_platform_field(found, job(nodeSelector={"pool": "cpu"}), [{}], [GPU]) == found


@pytest.mark.parametrize(
    ("before", "after", "pods", "again"),
    [
        (None, "a", [{"spec": {}}], True),
        ("a", None, [], True),
        ("a", "a", [{"spec": {}}], False),
        (None, None, [{"spec": {}}], False),
        (None, "a", [{"spec": {}}, {"spec": {"nodeName": "n"}}], False),
        (None, "a", [{"spec": {}}, {"spec": {"nodeName": "n"}, "status": {"phase": "Failed"}}], True),
        (None, "a", [{"spec": {}}, {"spec": {"nodeName": "n"}, "status": {"phase": "Succeeded"}}], True),
        (None, "a", [{"spec": {"nodeName": "n"}, "status": {"phase": "Succeeded"}}], False),
    ],
    ids=[
        *("waits", "queued", "unchanged", "of a release without the field", "runs", "waits after a failure"),
        *("waits for one of several pods", "is done"),
    ],
)
def test_a_job_none_of_whose_pods_has_a_node_follows_the_platform(
    before: str | None, after: str | None, pods: list[dict[str, Any]], again: bool
) -> None:
    assert is_placed_otherwise(job(before), job(after), pods) is again
