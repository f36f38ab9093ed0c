"""Programs that come from the machine's own Debian packages."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from localcluster.commands import run
from localcluster.console import Report
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
    "openssl": "openssl",
    "conntrack": "conntrack",
}
"""Command, and the Debian package that has it."""
CNI_PACKAGE = "containernetworking-plugins"
POLICY = Path("/usr/sbin/policy-rc.d")


def _which(command: str) -> str | None:
    return shutil.which(command, path=f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin")


def missing() -> dict[str, str]:
    """What is not installed, and the package that has it."""
    found = {command: package for command, package in COMMANDS.items() if _which(command) is None}
    if cni_plugins() is None:
        found[f"the CNI plugins (in {' or '.join(map(str, CNI_DIRECTORIES))})"] = CNI_PACKAGE
    return found


def install(report: Report) -> None:
    """Install what is missing, without starting the services that packages bring.

    Raises ClusterError with apt's words when it cannot.
    """
    packages = sorted(set(missing().values()))
    if not packages:
        return
    with report.step(f"Debian packages: {', '.join(packages)}"):
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        ours = not POLICY.exists()
        if ours:
            POLICY.write_text("#!/bin/sh\nexit 101\n")
            POLICY.chmod(0o755)
        try:
            run(["apt-get", "update", "-q"], environment=quiet)
            run(["apt-get", "install", "-qy", "--no-install-recommends", *packages], environment=quiet)
        finally:
            if ours:
                POLICY.unlink()
    if left := missing():
        raise ClusterError(f"still missing after apt-get install: {', '.join(left)}")
