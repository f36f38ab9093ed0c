"""The host's side of the network: a bridge and routes to pods.

iptables rules and sysctls exist only in the nodes' network namespaces, which end with the nodes.
"""

from __future__ import annotations

import contextlib
import json

from localcluster.addresses import BRIDGE, HOST, HOST_RANGE, NODES, POD_RANGE, PREFIX, NodeAddress
from localcluster.commands import run
from localcluster.errors import ClusterError


def links() -> list[str]:
    """The names of the host's network interfaces."""
    return [str(link["ifname"]) for link in json.loads(run(["ip", "-json", "link"]))]


def foreign_routes() -> list[str]:
    """Routes of the host that overlap the cluster's ranges, as `range dev name`; the cluster's own are left
    out."""
    found = []
    for target in (HOST_RANGE, POD_RANGE):
        for route in json.loads(run(["ip", "-json", "route", "show", "root", target])):
            if route.get("dev") != BRIDGE:
                found.append(f"{route['dst']} dev {route.get('dev')}")
    return found


def up() -> None:
    """Create the bridge with the host's address, unless it exists."""
    if BRIDGE in links():
        return
    run(["ip", "link", "add", BRIDGE, "type", "bridge"])
    run(["ip", "address", "add", f"{HOST}/{PREFIX}", "dev", BRIDGE])
    run(["ip", "link", "set", BRIDGE, "up"])


def connect(node: NodeAddress, pid: int) -> None:
    """Connect the network namespace of `pid` to the bridge with a veth pair, as eth0."""
    if node.host_link in links():
        run(["ip", "link", "delete", node.host_link])
    peer = f"{node.host_link}p"
    run(["ip", "link", "add", node.host_link, "type", "veth", "peer", "name", peer])
    run(["ip", "link", "set", node.host_link, "master", BRIDGE, "up"])
    run(["ip", "route", "replace", node.pods, "via", node.address, "dev", BRIDGE])
    run(["ip", "link", "set", peer, "netns", str(pid), "name", "eth0"])


def down() -> None:
    """Delete the bridge and the veth pairs; the routes vanish with the bridge. Raises ClusterError."""
    present = links()
    for name in (*(node.host_link for node in NODES), BRIDGE):
        if name in present:
            # The veth pair of a node that has ended may vanish after it was listed.
            with contextlib.suppress(ClusterError):
                run(["ip", "link", "delete", name])
    if left := [name for name in links() if name.startswith(BRIDGE)]:
        raise ClusterError(f"network interfaces could not be removed: {', '.join(left)}")
