"""Nodes whose kubelets KWOK simulates: healthy and lost ones."""

from datetime import UTC, datetime

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


def terminate_pods(api: Api, *, of_lost_nodes: bool) -> None:
    """Set whether KWOK also terminates deleted pods of lost nodes."""
    selector = [{"key": ".metadata.deletionTimestamp", "operator": "Exists"}]
    if not of_lost_nodes:
        marked = f'.metadata.annotations["{ON_LOST_NODE}"]'
        selector.append({"key": marked, "operator": "DoesNotExist"})
    api.patch("Stage", None, "pod-delete", {"spec": {"selector": {"matchExpressions": selector}}})


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
