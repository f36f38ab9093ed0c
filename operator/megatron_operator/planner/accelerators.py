"""What is known of accelerators: memory, speed, links. Data in `data/accelerators.yaml`, with sources."""

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from megatron_operator.api.platform import AcceleratorProfile

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One accelerator. Speeds are dense peaks in FLOP/s, bandwidths in byte/s and one direction."""

    name: str
    memory: int
    """Bytes."""
    bf16: float
    fp8: float | None
    """None: no FP8 matrix products."""
    memory_bandwidth: float
    near_bandwidth: float
    """To the others of its NVLink (or PCIe) domain."""
    far_bandwidth: float
    """To other domains, per accelerator, where the platform says nothing else."""
    domain: int
    """Accelerators that the near link joins; a node's, or more (NVL72)."""


@cache
def table() -> dict[str, Accelerator]:
    """All known accelerators by name."""
    text = resources.files("megatron_operator.planner").joinpath("data/accelerators.yaml").read_text()
    data: dict[str, dict[str, Any]] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {
        name: Accelerator(
            name=name,
            memory=int(entry["memoryGiB"] * GIB),
            bf16=entry["bf16Teraflops"] * 1e12,
            fp8=entry["fp8Teraflops"] * 1e12 if entry.get("fp8Teraflops") else None,
            memory_bandwidth=entry["memoryGBps"] * 1e9,
            near_bandwidth=entry["nearGBps"] * 1e9,
            far_bandwidth=entry["farGBps"] * 1e9,
            domain=entry["domain"],
        )
        for name, entry in data.items()
    }


def get(name: str) -> Accelerator | None:
    """The accelerator of that name; none when it is not in the table."""
    return table().get(name)


def of_profile(name: str, profile: AcceleratorProfile) -> Accelerator | None:
    """The accelerator behind a platform's profile of that name; none for `cpu` and unknown hardware."""
    return None if profile.platform == "cpu" else get(profile.hardware or name)
