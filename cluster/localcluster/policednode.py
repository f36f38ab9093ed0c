"""A node of the control-plane profile whose pods have network namespaces, on which policies are enforced.

KWOK's nodes have no network. On this one every pod is a network namespace, joined to the node's own by a veth
pair, and kube-router's controller enforces NetworkPolicies in the node's namespace by iptables and ipset.
Nothing runs in the pods but what the caller starts. All of it ends with the namespaces; the host has one
interface for it while it exists.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from localcluster import packages
from localcluster.binaries import Binaries
from localcluster.commands import run
from localcluster.console import Console
from localcluster.errors import ClusterError
from localcluster.kubectl import Object
from localcluster.paths import Paths

PROGRAM: Final = "network-policies"
NAME: Final = "policed"
"""Of the node; network namespaces and interfaces begin with it."""
HOST: Final = "198.18.0.1"
"""In the range that RFC 2544 reserves for tests; the host's end of its link with the node."""
ADDRESS: Final = "198.18.0.2"
_COMMANDS: Final = ("ip", "iptables", "ipset")


@dataclass(frozen=True)
class PodNetwork:
    """The network namespace of a pod, and its address."""

    namespace: str
    address: str

    def command(self, *words: str) -> list[str]:
        """The command line that runs `words` in this network namespace."""
        return ["ip", "netns", "exec", self.namespace, *words]


class PolicedNode:
    """Use as a context manager: the namespaces, the controller and its way to the API server."""

    def __init__(self, paths: Paths, binaries: Binaries, console: Console) -> None:
        self._paths = paths
        self._binaries = binaries
        self._console = console
        self._processes: list[subprocess.Popen[str]] = []
        self._pods = 0

    @staticmethod
    def problem() -> str | None:
        """Why this machine cannot run it; None if it can."""
        return None if os.geteuid() == 0 else "network namespaces need root"

    def manifest(self) -> Object:
        """The Node object, to be applied before `start`."""
        addresses = [{"type": "InternalIP", "address": ADDRESS}]
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": NAME, "labels": {"kubernetes.io/hostname": NAME}},
            "status": {"addresses": addresses},
        }

    def __enter__(self) -> PolicedNode:
        """Create the node's network namespace. Raises ClusterError."""
        packages.install(self._console, {name: packages.COMMANDS[name] for name in _COMMANDS})
        self._binaries.build((PROGRAM,), self._console)
        self._remove()
        run(["ip", "netns", "add", NAME])
        run(["ip", "link", "add", f"{NAME}-host", "type", "veth", "peer", "name", "eth0", "netns", NAME])
        run(["ip", "address", "add", f"{HOST}/30", "dev", f"{NAME}-host"])
        run(["ip", "link", "set", f"{NAME}-host", "up"])
        inside = ["ip", "-netns", NAME]
        run([*inside, "link", "set", "lo", "up"])
        run([*inside, "address", "add", f"{ADDRESS}/30", "dev", "eth0"])
        run([*inside, "link", "set", "eth0", "up"])
        run(["ip", "netns", "exec", NAME, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
            process.wait()
        self._remove()

    def start(self, folder: Path) -> None:
        """Enforce the cluster's policies on this node's pods, logging to `folder`. Raises ClusterError."""
        # The API server listens on loopback, which another network namespace does not reach.
        kubectl = [str(self._paths.binary("kubectl")), "--kubeconfig", str(self._paths.kubeconfig)]
        proxy = subprocess.Popen(
            [*kubectl, "proxy", f"--address={HOST}", "--port=0", "--accept-hosts=.*"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._processes.append(proxy)
        assert proxy.stdout is not None
        line = proxy.stdout.readline()
        if HOST not in line:
            raise ClusterError(f"kubectl proxy: {line or 'ended'}")
        kubeconfig = folder / "kubeconfig.yaml"
        kubeconfig.write_text(
            "{apiVersion: v1, kind: Config, current-context: proxy, "
            f'clusters: [{{name: proxy, cluster: {{server: "http://{line.split()[-1]}"}}}}], '
            "contexts: [{name: proxy, context: {cluster: proxy, user: nobody}}], "
            "users: [{name: nobody, user: {}}]}\n"
        )
        command = [str(self._paths.binary(PROGRAM)), f"--kubeconfig={kubeconfig}", f"--node={NAME}"]
        with (folder / f"{PROGRAM}.log").open("w") as log:
            controller = subprocess.Popen(
                ["ip", "netns", "exec", NAME, *command], stdout=log, stderr=subprocess.STDOUT, text=True
            )
        self._processes.append(controller)

    def add_pod(self) -> PodNetwork:
        """A network namespace with an address, reached through the node's.

        Raises ClusterError when all 60 addresses are taken.
        """
        self._pods += 1
        name, link, net = f"{NAME}-{self._pods}", f"pod{self._pods}", f"198.18.1.{4 * self._pods}"
        gateway, address = (f"198.18.1.{4 * self._pods + end}" for end in (1, 2))
        if self._pods > 60:
            raise ClusterError(f"no address is left after {net}")
        run(["ip", "netns", "add", name])
        run(
            ["ip", "-netns", NAME, "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name]
        )
        run(["ip", "-netns", NAME, "address", "add", f"{gateway}/30", "dev", link])
        run(["ip", "-netns", NAME, "link", "set", link, "up"])
        inside = ["ip", "-netns", name]
        run([*inside, "address", "add", f"{address}/30", "dev", "eth0"])
        run([*inside, "link", "set", "lo", "up"])
        run([*inside, "link", "set", "eth0", "up"])
        run([*inside, "route", "add", "default", "via", gateway])
        return PodNetwork(name, address)

    def _remove(self) -> None:
        for line in run(["ip", "netns", "list"]).splitlines():
            if (name := line.split()[0]).startswith(NAME):
                run(["ip", "netns", "delete", name])
