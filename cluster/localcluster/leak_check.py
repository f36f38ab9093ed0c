"""What a cluster might leave on the machine."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from localcluster import cgroups
from localcluster.commands import run
from localcluster.processes import owned_pids


@dataclass(frozen=True)
class MachineState:
    """The cluster's processes, and the machine's mounts, control groups, network and iptables rules."""

    processes: frozenset[str]
    mounts: frozenset[str]
    cgroups: frozenset[str]
    links: frozenset[str]
    network_namespaces: frozenset[str]
    routes: frozenset[str]
    iptables_rules: frozenset[str]

    def added_since(self, before: MachineState) -> list[str]:
        """One line for each item that `before` does not contain."""
        lines = []
        for name in self.__dataclass_fields__:
            for item in sorted(getattr(self, name) - getattr(before, name)):
                lines.append(f"{name.replace('_', ' ')}: {item}")
        return lines


EMPTY = MachineState(*[frozenset()] * 7)


def _iptables() -> frozenset[str]:
    if shutil.which("iptables-save") is None:
        return frozenset()
    rules = run(["iptables-save"]).splitlines()
    return frozenset(line for line in rules if line.startswith("-A"))


def read_machine_state(home: Path) -> MachineState:
    """The current state; `home` is the profile's folder, which marks the cluster's processes."""
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    namespaces = Path("/run/netns")
    return MachineState(
        processes=frozenset(str(pid) for pid in owned_pids(home)),
        mounts=frozenset(" ".join(line.split()[1:3]) for line in mounts),
        cgroups=frozenset(map(str, cgroups.leftovers())),
        links=frozenset(str(link["ifname"]) for link in json.loads(run(["ip", "-json", "link"]))),
        network_namespaces=frozenset(path.name for path in namespaces.glob("*")),
        routes=frozenset(
            f"{route['dst']} dev {route.get('dev')}" for route in json.loads(run(["ip", "-json", "route"]))
        ),
        iptables_rules=_iptables(),
    )
