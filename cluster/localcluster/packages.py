"""Programs from Debian packages of the machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from localcluster.commands import run
from localcluster.console import Console
from localcluster.errors import ClusterError
from localcluster.node import CNI_DIRECTORIES, cni_plugins

COMMANDS = {
    "containerd": "containerd",
    "runc": "runc",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "iptables": "iptables",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "conntrack": "conntrack",
    "ipset": "ipset",
}
"""Debian package by command."""
CNI_PACKAGE = "containernetworking-plugins"
POLICY = Path("/usr/sbin/policy-rc.d")


def _which(command: str) -> str | None:
    return shutil.which(command, path=f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin")


def missing(commands: Mapping[str, str] | None = None) -> dict[str, str]:
    """What is not installed, with its Debian package; of all that a cluster needs, or of these `commands`."""
    needed = COMMANDS if commands is None else commands
    found = {command: package for command, package in needed.items() if _which(command) is None}
    if commands is None and cni_plugins() is None:
        found[f"the CNI plugins (in {' or '.join(map(str, CNI_DIRECTORIES))})"] = CNI_PACKAGE
    return found


def install(console: Console, commands: Mapping[str, str] | None = None) -> None:
    """Install what is missing without starting the packages' services; by default all that a cluster needs.

    `commands`: Debian package by command, instead of those.

    Raises ClusterError with apt's output when that fails.
    """
    packages = sorted(set(missing(commands).values()))
    if not packages:
        return
    with console.step(f"Debian packages: {', '.join(packages)}"):
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        created = not POLICY.exists()
        if created:
            POLICY.write_text("#!/bin/sh\nexit 101\n")
            POLICY.chmod(0o755)
        try:
            run(["apt-get", "update", "-q"], environment=quiet)
            run(["apt-get", "install", "-qy", "--no-install-recommends", *packages], environment=quiet)
        finally:
            if created:
                POLICY.unlink()
    if left := missing(commands):
        raise ClusterError(f"still missing after apt-get install: {', '.join(left)}")
