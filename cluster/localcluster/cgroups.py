"""The control groups of the nodes' pods: `/megatron-<node>` in every hierarchy.

Supports cgroup v1 (one hierarchy per controller, also with v2 mounted next to it) and v2.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from localcluster.processes import wait_until

NEEDED = ("cpu", "cpuset", "memory", "pids")
PREFIX = "megatron-"


def hierarchies(mounts: str) -> dict[str, list[Path]]:
    """Mount points by file system type (`cgroup`, `cgroup2`) from the text of /proc/self/mounts."""
    found: dict[str, list[Path]] = {"cgroup": [], "cgroup2": []}
    for line in mounts.splitlines():
        _, point, kind, *_ = line.split()
        if kind in found:
            found[kind].append(Path(point))
    return found


def mounted() -> dict[str, list[Path]]:
    """Mount points of this machine by file system type."""
    return hierarchies(Path("/proc/self/mounts").read_text())


def missing_controllers() -> list[str]:
    """Controllers of NEEDED that no hierarchy offers."""
    found = mounted()
    offered = {name for point in found["cgroup"] for name in point.name.split(",")}
    for point in found["cgroup2"]:
        offered |= set((point / "cgroup.controllers").read_text().split())
    return [name for name in NEEDED if name not in offered]


def name_of(node: str) -> str:
    """Name of the node's top-level group."""
    return PREFIX + node


def create(node: str) -> None:
    """Create the node's group in every hierarchy, with its controllers enabled for subgroups."""
    found = mounted()
    for point in found["cgroup"]:
        group = point / name_of(node)
        group.mkdir(exist_ok=True)
        # A new cpuset is empty: no process can join it before these are set.
        for file in ("cpuset.cpus", "cpuset.mems"):
            if (point / file).exists():
                (group / file).write_text((point / file).read_text())
    for point in found["cgroup2"]:
        offered = (point / "cgroup.controllers").read_text().split()
        if not offered:
            continue  # hybrid mode: all controllers are in v1
        group = point / name_of(node)
        group.mkdir(exist_ok=True)
        for controller in offered:
            for parent in (point, group):
                with contextlib.suppress(OSError):
                    (parent / "cgroup.subtree_control").write_text(f"+{controller}")


def leftovers() -> list[Path]:
    """All groups of local clusters, deepest first."""
    found = mounted()
    groups: list[Path] = []
    for point in (*found["cgroup"], *found["cgroup2"]):
        for top in point.glob(f"{PREFIX}node-*"):
            groups += [path for path in top.rglob("*") if path.is_dir()] + [top]
    return sorted(groups, key=lambda path: len(path.parts), reverse=True)


def remove() -> None:
    """Remove all groups of ours. A killed process leaves its group a moment later, hence the wait."""

    def gone() -> bool:
        for group in leftovers():
            with contextlib.suppress(OSError):
                group.rmdir()
        return not leftovers()

    wait_until(gone, 30, "control groups to empty")
