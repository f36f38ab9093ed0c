"""What a cluster could leave on a machine, looked up the same way before and after."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from localcluster import cgroups
from localcluster.commands import run
from localcluster.processes import owned_pids


@dataclass(frozen=True)
class Traces:
    """Processes that carry our mark, and the machine's mounts, control groups, network and rules."""

    processes: frozenset[str]
    mounts: frozenset[str]
    cgroups: frozenset[str]
    links: frozenset[str]
    network_namespaces: frozenset[str]
    routes: frozenset[str]
    iptables_rules: frozenset[str]

    def since(self, before: Traces) -> list[str]:
        """What is here and was not in `before`, a line each."""
        lines = []
        for name in self.__dataclass_fields__:
            for item in sorted(getattr(self, name) - getattr(before, name)):
                lines.append(f"{name.replace('_', ' ')}: {item}")
        return lines


NONE = Traces(*[frozenset()] * 7)


def _iptables() -> frozenset[str]:
    if shutil.which("iptables-save") is None:
        return frozenset()
    rules = run(["iptables-save"]).splitlines()
    return frozenset(line for line in rules if line.startswith("-A"))


def take(home: Path) -> Traces:
    """The machine as it is; `home` is the profile's folder, by which our processes are known."""
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    namespaces = Path("/run/netns")
    return Traces(
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
