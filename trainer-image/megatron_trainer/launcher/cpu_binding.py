"""Binds ranks to the cores of the NUMA node that their GPU is attached to.

A rank's launches and its data loader's copies then stay on the GPU's side of the machine. Ranks whose GPUs
are on one node share its cores: the kernel balances them better than fixed parts, and a part that follows
core numbers may give two ranks the two threads of the same cores.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path

SYSFS = Path("/sys")


@dataclass(frozen=True)
class Binding:
    """Cores of ranks by local rank; ranks that are not in it stay on all cores of the pod."""

    cpus: dict[int, str] = field(default_factory=dict)
    """In the kernel's notation, `0-23,96-119`."""
    kept: tuple[str, ...] = ()
    """Why the other ranks are not bound."""

    def describe(self) -> str:
        """One line for the log."""
        bound = "; ".join(f"local rank {rank} on {cpus}" for rank, cpus in self.cpus.items())
        kept = f"not bound to cores: {'; '.join(self.kept)}" if self.kept else ""
        return ". ".join(
            part for part in (bound and f"bound to the cores of its GPU's NUMA node: {bound}", kept) if part
        )


def choose(
    devices: Sequence[str | None], workers: int, allowed: AbstractSet[int], sysfs: Path = SYSFS
) -> Binding:
    """Choose the cores of each local rank.

    `devices` are the ranks' devices as NVML names them on the PCI bus, None where it does not; `workers` the
    data loader's processes of a rank; `allowed` the cores that the pod may use. A node with fewer of these
    cores than its ranks and their workers need binds none of them.
    """
    nodes: dict[int, list[int]] = {}
    kept = []
    if unnamed := [str(rank) for rank, device in enumerate(devices) if device is None]:
        kept.append(f"NVML does not name the devices of local ranks {', '.join(unnamed)}")
    elsewhere = []
    for rank, device in enumerate(devices):
        node = None if device is None else _numa_node(sysfs, device)
        if node is not None:
            nodes.setdefault(node, []).append(rank)
        elif device is not None:
            elsewhere.append(device)
    if elsewhere:
        kept.append(f"sysfs has no NUMA node of devices {', '.join(elsewhere)}")
    cpus: dict[int, str] = {}
    for node, ranks in sorted(nodes.items()):
        usable = _cpus_of(sysfs, node) & allowed
        needed = len(ranks) * (1 + workers)
        if len(usable) < needed:
            kept.append(
                f"{len(usable)} cores of NUMA node {node} are the pod's, its {len(ranks)} ranks with "
                f"{workers} workers each need {needed}"
            )
        else:
            cpus |= dict.fromkeys(ranks, format_cpus(usable))
    return Binding(dict(sorted(cpus.items())), tuple(kept))


def parse_cpus(text: str) -> set[int]:
    """Core numbers of the kernel's notation, `0-23,96-119`. Raises ValueError."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cpus |= set(range(int(first), int(last or first) + 1))
    return cpus


def format_cpus(cpus: AbstractSet[int]) -> str:
    """The kernel's notation of core numbers."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def _numa_node(sysfs: Path, device: str) -> int | None:
    """The NUMA node of a device; None where the machine has one node or its firmware does not name it (-1).

    NVML writes eight digits of the PCI domain, `00000000:18:00.0`, the kernel at least four, in lower case.
    """
    domain, _, rest = device.partition(":")
    try:
        name = f"{int(domain, 16):04x}:{rest.lower()}"
        node = int((sysfs / "bus/pci/devices" / name / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _cpus_of(sysfs: Path, node: int) -> set[int]:
    try:
        return parse_cpus((sysfs / f"devices/system/node/node{node}/cpulist").read_text())
    except (OSError, ValueError):
        return set()
