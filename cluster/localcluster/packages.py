"""Programs from Debian packages of the machine."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
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
LISTS_LOCK = Path("/var/lib/apt/lists/lock")
LOCK_SECONDS = 600
"""For how long another apt, such as the machine's own updates, is waited for."""
LOCK_POLL = 0.5
"""Seconds between two attempts to take the lock."""
_APT = ("apt-get", "-o", f"DPkg::Lock::Timeout={LOCK_SECONDS}", "-o", "Acquire::Retries=5")


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
            _update_lists(quiet)
            run([*_APT, "install", "-qy", "--no-install-recommends", *packages], environment=quiet)
        finally:
            if created:
                POLICY.unlink()
    if left := missing(commands):
        raise ClusterError(f"still missing after apt-get install: {', '.join(left)}")


def _update_lists(environment: Mapping[str, str]) -> None:
    """`apt-get update`; for its lock apt itself does not wait."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        wait_for_lock(LISTS_LOCK, deadline)
        try:
            run([*_APT, "update", "-q"], environment=environment)
        except ClusterError as error:
            if str(LISTS_LOCK) in str(error) and time.monotonic() < deadline:
                continue  # taken by another apt since
            raise
        return


def wait_for_lock(path: Path, deadline: float) -> None:
    """Return once no process holds a lock on the file, or at the deadline (time.monotonic())."""
    with contextlib.suppress(FileNotFoundError), path.open("r+") as file:
        while time.monotonic() < deadline:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(LOCK_POLL)
            else:
                return
