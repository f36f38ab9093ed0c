"""Table of accelerators: memory, speed, links. Data and sources are in `data/accelerators.yaml`."""

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any, Final

import yaml

from megatron_operator.api.hardware import ALIASES
from megatron_operator.api.platform import AcceleratorProfile

GIB = 2**30


@dataclass(frozen=True, slots=True)
class TopologyLevel:
    """Domains of several nodes, such as racks, which a platform describes."""

    key: str
    """Label of their nodes."""
    ranks: int
    """Ranks of one domain."""
    uplink: float
    """Bandwidth out of a domain for each rank of it, in bytes/s and direction."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One accelerator. Peaks are dense, in FLOP/s; bandwidths in bytes/s, per accelerator and direction."""

    name: str
    architecture: str
    """`ampere`, `ada`, `hopper`, `blackwell`, `blackwell-ultra`, `rtx-blackwell`, or `unknown`."""
    memory: int
    """Bytes, as the driver reports."""
    bf16: float
    """Dense BF16 peak in FLOP/s."""
    fp8: float | None
    """Dense FP8 peak in FLOP/s; None without FP8 matrix products."""
    memory_bandwidth: float
    """To and from its own memory."""
    link_bandwidth: float
    """To other accelerators of its NVLink (or PCIe) domain."""
    nvlink: bool
    """Whether the link is NVLink."""
    domain: int
    """Accelerators that the link connects: those of a node, or more (NVL72)."""
    across_nodes: bool
    """Whether the link connects nodes, and so the pods of one domain."""
    network_bandwidth: float
    """To other domains; assumed as in the vendor's reference system."""
    source: str
    levels: tuple[TopologyLevel, ...] = ()
    """What the platform describes between node or NVLink domain and the whole network, nearest first."""

    @property
    def tf32(self) -> float:
        """Dense TF32 peak in FLOP/s: half of that of BF16 on all chips of the table, as in data sheets."""
        return self.bf16 / 2

    @property
    def fp32(self) -> float:
        """FP32 peak without tensor cores in FLOP/s, from that of BF16.

        Data sheets: 92 of 362 on L40S; 67 of 989 on H100, of which other architectures have about the share.
        """
        return self.bf16 * (1 / 4 if self.architecture in ("ada", "rtx-blackwell") else 1 / 15)

    def overlaps_tensor_parallel(self, tp: int) -> bool:
        """Whether tpCommOverlap can work for TP groups of `tp` ranks.

        They must be in one NVLink domain, by a maintainer of Transformer Engine (TransformerEngine#985).
        """
        return self.nvlink and tp <= self.domain


def _accelerator(name: str, entry: dict[str, Any]) -> Accelerator:
    fp8 = entry.get("fp8Teraflops")
    return Accelerator(
        name=name,
        architecture=entry["architecture"],
        memory=int(entry["memoryGiB"] * GIB),
        bf16=entry["bf16Teraflops"] * 1e12,
        fp8=fp8 * 1e12 if fp8 else None,
        memory_bandwidth=entry["memoryGBps"] * 1e9,
        link_bandwidth=entry["linkGBps"] * 1e9,
        nvlink=entry.get("nvlink", True),
        domain=entry["domain"],
        across_nodes=entry.get("acrossNodes", False),
        network_bandwidth=entry["networkGBps"] * 1e9,
        source=entry["source"],
    )


@cache
def table() -> dict[str, Accelerator | None]:
    """All known accelerators by name and alias; none for `cpu`, which has no data sheet."""
    text = resources.files("megatron_operator.planner").joinpath("data/accelerators.yaml").read_text()
    data: dict[str, dict[str, Any]] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    known: dict[str, Accelerator | None] = {}
    for name, entry in data.items():
        known[name] = _accelerator(name, entry) if "memoryGiB" in entry else None
    return known | {alias: known[name] for alias, name in ALIASES.items()}


def get(name: str) -> Accelerator | None:
    """The accelerator of that name; none for `cpu` and for a name that is not in the table."""
    return table().get(name)


def of_profile(name: str, profile: AcceleratorProfile, per_node: int | None = None) -> Accelerator | None:
    """The accelerator behind a platform's profile of that name; none for `cpu` and unknown hardware.

    A data sheet of the profile takes the place of the table's. `per_node`: ranks of a node, by default the
    profile's.
    """
    if profile.platform == "cpu":
        return None
    known_as = profile.known_as(name)
    if profile.data_sheet is None:
        accelerator = get(known_as)
    else:
        entry = {"architecture": "unknown", **profile.data_sheet.wire(), "source": "the platform file"}
        accelerator = _accelerator(known_as, entry)
    if accelerator is None:
        return None
    ranks = per_node or profile.per_node
    # A link within nodes does not connect the pods of smaller ones.
    domain = accelerator.domain if accelerator.across_nodes else min(accelerator.domain, ranks)
    return replace(accelerator, domain=domain, levels=_levels(accelerator, profile, ranks))


def _levels(on: Accelerator, profile: AcceleratorProfile, per_node: int) -> tuple[TopologyLevel, ...]:
    """The levels that a profile describes, nearest first.

    Ranks of an NVLink domain use no uplink within it. What leaves it crosses those of smaller domains too.
    """
    linked = nvlink_ranks(on, per_node)
    found, bandwidth = [], on.network_bandwidth
    for key in profile.topology:
        domain = profile.topology_domains.get(key)
        if domain is None:
            continue
        if domain.uplink_gbps is not None:
            bandwidth = min(bandwidth, domain.uplink_gbps * 1e9)
        elif domain.oversubscription is not None:
            bandwidth /= domain.oversubscription
        found.append(TopologyLevel(key, max(linked, domain.nodes * per_node), bandwidth))
    return tuple(found)


class Generation(StrEnum):
    """Generation of GPUs for which Megatron-Bridge has recipes."""

    HOPPER = "hopper"
    BLACKWELL = "blackwell"
    """Also later ones, as long as nothing else is known of them."""


_BLACKWELL_OR_LATER: Final = re.compile(r"g?[br][0-9]{3}")
_GENERATIONS: Final = {
    "hopper": Generation.HOPPER,
    "blackwell": Generation.BLACKWELL,
    "blackwell-ultra": Generation.BLACKWELL,
}


def generation(name: str, profile: AcceleratorProfile) -> Generation | None:
    """The generation of the GPU behind a platform's profile of that name; None for older and other hardware.

    Names that are not in the table count too (`b200-custom`, `gr300`), with or without a data sheet.
    """
    accelerator = of_profile(name, profile)
    if accelerator is not None and accelerator.architecture != "unknown":
        return _GENERATIONS.get(accelerator.architecture)
    known_as = profile.known_as(name).lower()
    if profile.platform == "gpu" and _BLACKWELL_OR_LATER.match(known_as):
        return Generation.BLACKWELL
    return None


def with_block_scales(accelerator: Accelerator) -> str:
    """Chips that multiply MXFP8 and NVFP4, which this one does not."""
    if accelerator.architecture == "rtx-blackwell":
        return "a data-center Blackwell (b200, gb200)"
    return "Blackwell or later"


def nvlink_ranks(accelerator: Accelerator | None, pod: int) -> int:
    """Ranks of one NVLink domain: those of a pod of `pod` ranks, or of several pods."""
    return max(accelerator.domain, pod) if accelerator and accelerator.across_nodes else pod
