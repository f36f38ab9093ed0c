"""What a profile needs of the machine, told all at once."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from localcluster import cgroups, network, packages
from localcluster.addresses import BRIDGE
from localcluster.binaries import go_version
from localcluster.commands import run
from localcluster.errors import ClusterError, MissingRequirements
from localcluster.paths import Layout

GO = (1, 26)
DISK_GIB = 26
"""For `.cluster` alone: 19 in the end, 25 at its peak. Python and Go have had theirs by then."""
HIDDEN = ("/run", "/var/lib", "/var/log")
"""Each node has these folders for itself, so the checkout cannot lie in one of them."""


def parse_go_version(text: str) -> tuple[int, int]:
    """("go1.26.8") -> (1, 26). Raises ClusterError on anything else."""
    if not (match := re.match(r"go(\d+)\.(\d+)", text)):
        raise ClusterError(f"go env GOVERSION says {text!r}: expected go<major>.<minor>")
    return int(match[1]), int(match[2])


def _go() -> list[str]:
    try:
        found = parse_go_version(go_version())
    except ClusterError as error:
        return [str(error)]
    if found < GO:
        return [f"Go {found[0]}.{found[1]} is too old: Kubernetes 1.36 needs {GO[0]}.{GO[1]} or later"]
    return []


def _namespaces() -> list[str]:
    """Try what a node does, in namespaces that end with the attempt."""
    attempt = (
        "ip link add br0 type bridge && ip link add v0 type veth peer name v1 && "
        "mount -t tmpfs tmpfs /mnt && iptables -t nat -A POSTROUTING -m comment --comment x -j MASQUERADE"
    )
    try:
        run(["unshare", "--mount", "--pid", "--net", "--fork", "--mount-proc", "sh", "-c", attempt])
    except ClusterError as error:
        return [f"namespaces with a bridge, a veth pair, a mount and an iptables rule: {error}"]
    return []


def hidden_by(checkout: Path) -> str | None:
    """The folder of HIDDEN in which the checkout lies, if any."""
    return next((folder for folder in HIDDEN if checkout.is_relative_to(folder)), None)


def missing_disk(layout: Layout) -> str | None:
    """What is said where the cluster would fill the disk; one that was up here before has its space."""
    free = shutil.disk_usage(layout.checkout).free >> 30
    if layout.cache.exists() or free >= DISK_GIB:
        return None
    return f"{DISK_GIB} GiB of disk below {layout.checkout}, {free} are free"


def _full(layout: Layout) -> list[str]:
    lines = []
    if os.geteuid() != 0:
        lines.append("root: nodes are made of namespaces, mounts and control groups; run it with sudo -E")
    if absent := cgroups.missing_controllers():
        lines.append(f"cgroup controllers {', '.join(absent)}: mount them, or enable them on the kernel line")
    if "overlay" not in Path("/proc/filesystems").read_text():
        lines.append("the overlay file system: modprobe overlay")
    if (folder := hidden_by(layout.checkout)) is not None:
        lines.append(f"a checkout outside of {folder}: each node has that folder for itself")
    if (absent_commands := packages.missing()) and shutil.which("apt-get") is None:
        lines += [f"{command}: install {package}" for command, package in absent_commands.items()]
    if BRIDGE not in network.links() and (routes := network.foreign_routes()):
        lines.append(f"the address ranges of the cluster, which are in use: {', '.join(routes)}")
    if (disk := missing_disk(layout)) is not None:
        lines.append(disk)
    return lines


def check_go(layout: Layout) -> None:
    """Raises MissingRequirements when the programs cannot be built here."""
    if lines := _go():
        raise MissingRequirements(layout.profile, lines)


def check(layout: Layout) -> None:
    """Raises MissingRequirements with a line for each thing that the machine lacks."""
    lines = _go()
    if layout.profile == "full":
        lines += _full(layout)
    elif shutil.which("openssl") is None:
        lines.append("openssl: install the package openssl")
    if lines:
        raise MissingRequirements(layout.profile, lines)


def check_namespaces(layout: Layout) -> None:
    """The same for what can only be tried once the packages are there."""
    if lines := _namespaces():
        raise MissingRequirements(layout.profile, lines)
