"""The most informative problem, in the words of the component that reports it."""

from typing import Any

import pytest
from megatron_operator.api.reasons import Reason
from megatron_operator.lifecycle.pod_diagnosis import Diagnosis, diagnose


def pod(name: str, waiting: dict[str, str] | None = None, unschedulable: str | None = None) -> dict[str, Any]:
    status: dict[str, Any] = {"phase": "Pending"}
    if waiting:
        status["containerStatuses"] = [{"name": "pytorch", "state": {"waiting": waiting}}]
    if unschedulable:
        status["conditions"] = [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": unschedulable}
        ]
    return {"metadata": {"name": f"run-{name}"}, "status": status}


def event(message: str, time: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
    return {"reason": "FailedCreatePod", "message": message, "lastTimestamp": time}


def test_an_image_problem_takes_precedence_over_scheduling() -> None:
    pods = [
        pod("master-0", unschedulable="0/2 nodes are available"),
        pod("worker-0", {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}),
    ]
    assert diagnose(pods, [], "run") == Diagnosis(
        Reason.IMAGE_PULL_FAILED, "worker-0: ImagePullBackOff: Back-off pulling image"
    )


def test_a_pod_that_nothing_assigns_to_its_pod_group_has_the_missing_policy_as_its_reason() -> None:
    body = pod("worker-0") | {"spec": {"schedulingGates": [{"name": "megatron.training/pod-group"}]}}
    found = diagnose([body], [], "run")
    assert found is not None
    assert found.reason is Reason.POD_GROUP_MISSING
    assert "MutatingAdmissionPolicy" in found.message


def test_a_gate_of_somebody_else_is_no_problem() -> None:
    body = pod("worker-0") | {"spec": {"schedulingGates": [{"name": "kueue.x-k8s.io/topology"}]}}
    assert diagnose([body], [], "run") is None


def test_the_image_of_an_init_container_counts_too() -> None:
    body = pod("worker-0")
    waiting = {"reason": "ErrImagePull", "message": "alpine:3.10 not found"}
    body["status"]["initContainerStatuses"] = [{"name": "init-pytorch", "state": {"waiting": waiting}}]
    found = diagnose([body], [], "run")
    assert found is not None
    assert found.reason == "ImagePullFailed"


def test_the_level_that_pods_without_a_node_must_share_is_named() -> None:
    body = pod("worker-0", unschedulable="0/2 nodes")
    rack = [{"topologyKey": "topology.kubernetes.io/rack"}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": rack}
    body["spec"] = {"affinity": {"podAffinity": required}}
    assert diagnose([body], [], "run") == Diagnosis(
        Reason.UNSCHEDULABLE,
        "1 pod has no node; all pods must share topology.kubernetes.io/rack; worker-0: 0/2 nodes",
    )


def test_a_claim_without_a_volume_is_named() -> None:
    message = "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"
    body = pod("worker-0", unschedulable=message)
    claims = ("run-checkpoints", "run-data")
    body["spec"] = {
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            *({"name": each, "persistentVolumeClaim": {"claimName": each}} for each in claims),
        ]
    }
    assert diagnose([body], [], "run") == Diagnosis(
        Reason.VOLUME_CLAIM_UNBOUND,
        "1 pod has no node: claim run-checkpoints or run-data is not bound; "
        "kubectl describe pvc run-checkpoints run-data has the reason",
    )


def test_all_pods_without_a_node_are_counted() -> None:
    pods = [pod(f"worker-{index}", unschedulable="0/2 nodes") for index in range(3)]
    assert diagnose(pods, [], "run") == Diagnosis(
        Reason.UNSCHEDULABLE, "3 pods have no node; worker-0: 0/2 nodes"
    )


def test_the_newest_warning_explains_missing_pods() -> None:
    events = [
        event("Error creating: something else", "2026-01-01T00:00:00Z"),
        event('Error creating: pods "run-worker-0" is forbidden: exceeded quota: x', "2026-01-01T00:00:09Z"),
    ]
    found = diagnose([], events, "run")
    assert found is not None
    assert found.reason == "QuotaExceeded"


def test_a_container_that_is_being_created_is_no_problem() -> None:
    assert diagnose([pod("master-0", {"reason": "ContainerCreating"})], [], "run") is None


def waiting_for(message: str) -> dict[str, Any]:
    """A pod whose container needs a Secret and ConfigMaps, as the kubelet reports a missing one."""
    body = pod("worker-0", {"reason": "CreateContainerConfigError", "message": message})
    body["metadata"]["namespace"] = "research"
    body["spec"] = {
        "containers": [
            {
                "name": "pytorch",
                "env": [
                    {"name": "HOME", "value": "/tmp"},
                    {
                        "name": "WANDB_API_KEY",
                        "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "api-key"}},
                    },
                    {"name": "WANDB_TEAM", "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "team"}}},
                ],
                "envFrom": [{"configMapRef": {"name": "proxies"}}],
            }
        ]
    }
    return body


@pytest.mark.parametrize(
    ("message", "added"),
    [
        (
            'secret "wandb" not found',
            " (for spec.envValueFrom.WANDB_API_KEY, spec.envValueFrom.WANDB_TEAM); "
            "create Secret wandb in namespace research, or correct the field",
        ),
        (
            "couldn't find key api-key in Secret research/wandb",
            " (for spec.envValueFrom.WANDB_API_KEY); "
            "create key api-key of Secret wandb in namespace research, or correct the field",
        ),
        (
            'configmap "proxies" not found',
            " (for spec.envFrom); create ConfigMap proxies in namespace research, or correct the field",
        ),
        ('secret "of-somebody-else" not found', ""),
        ("container has runAsNonRoot and image will run as root", ""),
    ],
)
def test_a_missing_object_is_reported_with_the_field_that_needs_it(message: str, added: str) -> None:
    expected = f"worker-0: CreateContainerConfigError: {message}{added}"
    assert diagnose([waiting_for(message)], [], "run") == Diagnosis(Reason.POD_CONFIG_ERROR, expected)


def test_a_missing_secret_of_an_object_store_is_named_by_its_field() -> None:
    message = 'secret "reader" not found'
    body = pod("prepare-0", {"reason": "CreateContainerConfigError", "message": message})
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    keys = [{"name": name, "valueFrom": {"secretKeyRef": {"name": "reader", "key": name}}} for name in names]
    body["spec"] = {"containers": [{"name": "prepare", "env": keys}]}
    found = diagnose([body], [], "run")
    assert found is not None
    assert found.message.endswith(
        "(for spec.data.prepare.objectStorage.secretName); create Secret reader in namespace None, "
        "or correct the field"
    )


def test_a_missing_secret_of_a_hub_is_named_by_its_field() -> None:
    message = 'secret "hub" not found'
    body = pod("import-0", {"reason": "CreateContainerConfigError", "message": message})
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    body["spec"] = {"containers": [{"name": "convert", "env": [token]}]}
    found = diagnose([body], [], "run")
    assert found is not None
    assert "(for spec.init.from.huggingFace.secretKeyRef or platform.hub.secretKeyRef)" in found.message


def test_a_missing_key_of_a_tracker_is_reported_with_the_trackers_field() -> None:
    body = waiting_for("couldn't find key api-key in Secret research/wandb")
    tracking = '{"tensorboard":false,"wandb":{"project":"p"},"mlflow":null}'
    body["spec"]["containers"][0]["env"].append({"name": "MEGATRON_TRACKING", "value": tracking})
    found = diagnose([body], [], "run")
    assert found is not None
    assert "(for spec.tracking.wandb.secretKeyRef or spec.envValueFrom.WANDB_API_KEY)" in found.message
