"""Nodes whose kubelets KWOK simulates."""

from testkit.api_server import Object


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
