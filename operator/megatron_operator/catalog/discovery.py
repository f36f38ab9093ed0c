"""Discovers a cluster's accelerators from node labels, for what the platform file leaves out.

Labels read: `nvidia.com/gpu.product` and `nvidia.com/gpu.count` (GPU feature discovery), the well-known
`node.kubernetes.io/instance-type`, and the topology labels of AWS, Google Cloud and NVIDIA's GPU operator.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from megatron_operator.api.platform import AcceleratorProfile, PlatformConfig

PRODUCT: Final = "nvidia.com/gpu.product"
COUNT: Final = "nvidia.com/gpu.count"
INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"

PRODUCTS: Final = {
    "NVIDIA-A100-SXM4-40GB": "a100-40",
    "NVIDIA-A100-SXM4-80GB": "a100-80",
    "NVIDIA-H100-80GB-HBM3": "h100-sxm",
    "NVIDIA-H100-PCIe": "h100-pcie",
    "NVIDIA-H100-NVL": "h100-nvl",
    "NVIDIA-H200": "h200",
    "NVIDIA-B200": "b200",
    "NVIDIA-B300-SXM6-AC": "b300",
    "NVIDIA-GB200": "gb200",
    "NVIDIA-GB300": "gb300",
    "NVIDIA-L40S": "l40s",
    "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition": "rtx-pro-6000",
    "NVIDIA-A800-SXM4-80GB": "a800-80",
    "NVIDIA-H800": "h800",
    "NVIDIA-H20": "h20",
}
"""Product name of GPU feature discovery -> the planner's name."""

INSTANCE_TYPES: Final = {
    "p4d.24xlarge": ("a100-40", 8),
    "p4de.24xlarge": ("a100-80", 8),
    "p5.48xlarge": ("h100-sxm", 8),
    "p5e.48xlarge": ("h200", 8),
    "p5en.48xlarge": ("h200", 8),
    "p6-b200.48xlarge": ("b200", 8),
    "a2-highgpu-8g": ("a100-40", 8),
    "a2-ultragpu-8g": ("a100-80", 8),
    "a3-highgpu-8g": ("h100-sxm", 8),
    "a3-megagpu-8g": ("h100-sxm", 8),
    "a3-ultragpu-8g": ("h200", 8),
    "a4-highgpu-8g": ("b200", 8),
    "Standard_ND96asr_v4": ("a100-40", 8),
    "Standard_ND96amsr_A100_v4": ("a100-80", 8),
    "Standard_ND96isr_H100_v5": ("h100-sxm", 8),
    "Standard_ND96isr_H200_v5": ("h200", 8),
}
"""Instance type of a cloud -> the planner's name and the GPUs of one instance."""

TOPOLOGY: Final = (
    "nvidia.com/gpu.clique",
    "topology.k8s.aws/network-node-layer-3",
    "topology.k8s.aws/network-node-layer-2",
    "topology.k8s.aws/network-node-layer-1",
    "cloud.google.com/gce-topology-subblock",
    "cloud.google.com/gce-topology-block",
    "topology.kubernetes.io/zone",
)
"""Topology labels, from the closest nodes to the farthest."""

_Member = tuple[dict[str, str], int, Mapping[str, str]]
"""The label that identifies the accelerator of a node, how many it has, and all its labels."""


def with_nodes(platform: PlatformConfig, nodes: Iterable[Mapping[str, str]]) -> PlatformConfig:
    """The platform, completed from the labels of its `nodes`; settings of the file take precedence.

    A kind of node without a profile becomes a profile under the planner's name of its accelerator. A profile
    without node labels gets those of its nodes, one without topology keys the keys that all of them have.
    """
    kinds: dict[str, list[_Member]] = defaultdict(list)
    for labels in nodes:
        found = _kind(labels)
        if found is not None:
            hardware, selector, count = found
            kinds[hardware].append((selector, count, labels))
    profiles = dict(platform.accelerators)
    for hardware, nodes_of_kind in sorted(kinds.items()):
        members = _without_new(nodes_of_kind)
        described = [
            name
            for name, profile in profiles.items()
            if profile.platform == "gpu" and profile.known_as(name) == hardware
        ]
        for name in described or [hardware]:
            profiles[name] = _filled(profiles.get(name), members)
    return platform.model_copy(update={"accelerators": profiles})


def _kind(labels: Mapping[str, str]) -> tuple[str, dict[str, str], int] | None:
    """The accelerator of one node, the label that identifies it, and how many the node has."""
    product, instance_type = labels.get(PRODUCT), labels.get(INSTANCE_TYPE)
    if product in PRODUCTS:
        count = labels.get(COUNT, "")
        return PRODUCTS[product], {PRODUCT: product}, int(count) if count.isdigit() and int(count) else 8
    if instance_type in INSTANCE_TYPES:
        hardware, number = INSTANCE_TYPES[instance_type]
        return hardware, {INSTANCE_TYPE: instance_type}, number
    return None


def _without_new(members: list[_Member]) -> list[_Member]:
    """The nodes of one accelerator without those that GPU feature discovery has not labelled yet.

    Such a node is known by its instance type alone, which a labelled one has too. It lacks labels that it is
    about to have, and pods would lose their node affinity meanwhile.
    """
    labelled = {labels.get(INSTANCE_TYPE) for selector, _, labels in members if PRODUCT in selector}
    return [each for each in members if PRODUCT in each[0] or each[0][INSTANCE_TYPE] not in labelled]


def _filled(profile: AcceleratorProfile | None, members: list[_Member]) -> AcceleratorProfile:
    selectors = {tuple(selector.items()) for selector, _, _ in members}
    # A pod cannot require alternative labels; with several, only its resource request places it.
    labels = dict(next(iter(selectors))) if len(selectors) == 1 else {}
    keys = [key for key in TOPOLOGY if all(key in node for _, _, node in members)]
    if profile is None:
        return AcceleratorProfile(per_node=_usual_count(members), node_labels=labels, topology=keys)
    added: dict[str, object] = {}
    if not profile.node_labels:
        added["node_labels"] = labels
    if not profile.topology:
        added["topology"] = keys
    if "per_node" not in profile.model_fields_set:
        added["per_node"] = _usual_count(members)
    return profile.model_copy(update=added)


def _usual_count(members: list[_Member]) -> int:
    """The most frequent number of accelerators of a node, the larger on a tie.

    A node that has lost one keeps the others at their size: pods of a whole node do not fit on it anyway.
    """
    nodes = Counter(count for _, count, _ in members)
    return max(nodes, key=lambda count: (nodes[count], count))
