"""Checks whether the machine meets a profile's requirements; all unmet ones are reported together."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from localcluster import cgroups, network, packages
from localcluster.addresses import BRIDGE
from localcluster.binaries import go_version
from localcluster.commands import run
from localcluster.errors import ClusterError, MissingRequirementsError
from localcluster.paths import Paths

GO = (1, 26)
DISK_GIB = 26
"""For `.cluster`: 19 in the end, 25 at the peak. Python's and Go's caches come on top, filled by then."""
HIDDEN = ("/run", "/var/lib", "/var/log")
"""Each node has its own version of these folders, so the checkout cannot be in one of them."""


def parse_go_version(text: str) -> tuple[int, int]:
    """("go1.26.8") -> (1, 26). Raises ClusterError on anything else."""
    if not (match := re.match(r"go(\d+)\.(\d+)", text)):
        raise ClusterError(f"cannot parse `go env GOVERSION`: got {text!r}, expected go<major>.<minor>")
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
    """Try what a node does, in temporary namespaces."""
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
    """The folder of HIDDEN that contains the checkout, if any."""
    return next((folder for folder in HIDDEN if checkout.is_relative_to(folder)), None)


def missing_disk(paths: Paths) -> str | None:
    """The unmet requirement for disk space; None where it is met or a cluster was started here before."""
    free = shutil.disk_usage(paths.checkout).free >> 30
    if paths.cache.exists() or free >= DISK_GIB:
        return None
    return f"{DISK_GIB} GiB of disk space in {paths.checkout}; {free} GiB are free"


def _full(paths: Paths) -> list[str]:
    lines = []
    if os.geteuid() != 0:
        lines.append("root: nodes are made of namespaces, mounts and control groups; run it with sudo -E")
    if absent := cgroups.missing_controllers():
        lines.append(f"cgroup controllers {', '.join(absent)}: mount them, or enable them on the kernel line")
    if "overlay" not in Path("/proc/filesystems").read_text():
        lines.append("the overlay file system: modprobe overlay")
    if (folder := hidden_by(paths.checkout)) is not None:
        lines.append(f"a checkout outside {folder}: each node mounts its own {folder}")
    if (absent_commands := packages.missing()) and shutil.which("apt-get") is None:
        lines += [f"{command}: install {package}" for command, package in absent_commands.items()]
    if BRIDGE not in network.links() and (routes := network.foreign_routes()):
        lines.append(f"unused address ranges; in use by: {', '.join(routes)}")
    if (disk := missing_disk(paths)) is not None:
        lines.append(disk)
    return lines


def check_go(paths: Paths) -> None:
    """Check whether the programs can be built. Raises MissingRequirementsError."""
    if lines := _go():
        raise MissingRequirementsError(paths.profile, lines)


def check(paths: Paths) -> None:
    """Check everything that needs no packages. Raises MissingRequirementsError with a line for each
    problem."""
    lines = _go()
    if paths.profile == "full":
        lines += _full(paths)
    if lines:
        raise MissingRequirementsError(paths.profile, lines)


def check_namespaces(paths: Paths) -> None:
    """Check what can be tried only with the packages installed. Raises MissingRequirementsError."""
    if lines := _namespaces():
        raise MissingRequirementsError(paths.profile, lines)
