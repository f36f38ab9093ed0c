"""Nodes whose kubelets KWOK simulates: healthy and lost ones."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime

from localcluster.kwok import BEING_DELETED, DELETE

from testkit.api_server import Api, Object

NODE_LEASES = "kube-node-lease"
ON_LOST_NODE = "on-a-lost-node"
"""Annotation of pods that KWOK must not terminate. It would terminate pods of any node."""


def fake_node(name: str, rack: str, cpu: str = "64", **labels: str) -> Object:
    """A node whose kubelet KWOK simulates, with 8 simulated GPUs."""
    resources = {"cpu": cpu, "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                "kubernetes.io/hostname": name,
                "megatron.training/simulated-gpu": "true",
                "topology.kubernetes.io/rack": rack,
                **labels,
            },
        },
        "status": {"allocatable": resources, "capacity": resources},
    }


@contextmanager
def pod_stage(
    api: Api, name: str, labels: Mapping[str, str], phase: str, status: str, **spec: object
) -> Iterator[None]:
    """Have KWOK give pods of a phase with these labels this status, before its own stages.

    `status` is a template in YAML, `spec` has further fields of the Stage, such as `delay`.
    """
    of_phase = [{"key": ".status.phase", "operator": "In", "values": [phase]}]
    api.apply(
        {
            "apiVersion": "kwok.x-k8s.io/v1alpha1",
            "kind": "Stage",
            "metadata": {"name": name},
            "spec": {
                "resourceRef": {"apiGroup": "v1", "kind": "Pod"},
                "selector": {"matchLabels": dict(labels), "matchExpressions": of_phase},
                "weight": 1_000_000,
                "next": {"statusTemplate": status},
                **spec,
            },
        }
    )
    try:
        yield
    finally:
        api.delete("Stage", None, name)


def ended(container: str, code: int, message: str) -> str:
    """The status of a pod whose container has ended with this exit code and termination message."""
    return (
        f"phase: {'Failed' if code else 'Succeeded'}\n"
        "containerStatuses:\n"
        f"- name: {container}\n"
        "  image: i\n"
        "  imageID: ''\n"
        "  ready: false\n"
        "  restartCount: 0\n"
        "  state:\n"
        "    terminated:\n"
        f"      exitCode: {code}\n"
        "      reason: Ended\n"
        f"      message: '{message}'\n"
    )


def terminate_pods(api: Api, *, of_lost_nodes: bool) -> None:
    """Set whether KWOK also terminates deleted pods of lost nodes."""
    selector = [BEING_DELETED]
    if not of_lost_nodes:
        marked = f'.metadata.annotations["{ON_LOST_NODE}"]'
        selector.append({"key": marked, "operator": "DoesNotExist"})
    api.patch("Stage", None, DELETE, {"spec": {"selector": {"matchExpressions": selector}}})


def lose_node(api: Api, name: str) -> None:
    """Stop simulating the node's kubelet: the node becomes unreachable and its pods keep their status."""
    for pod in api.list("Pod", fieldSelector=f"spec.nodeName={name}"):
        metadata = pod["metadata"]
        mark = {"metadata": {"annotations": {ON_LOST_NODE: "true"}}}
        api.patch("Pod", metadata["namespace"], metadata["name"], mark)
    api.patch("Node", None, name, {"metadata": {"annotations": {"kwok.x-k8s.io/node": None}}})
    # KWOK does not renew a lease with another holder.
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    held = {"holderIdentity": "nobody", "leaseDurationSeconds": 3600, "renewTime": now}
    api.patch("Lease", NODE_LEASES, name, {"spec": held})
