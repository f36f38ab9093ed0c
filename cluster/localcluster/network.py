"""The host's side of the network: a bridge, and routes to pods. No iptables rule, no sysctl.

All of those are inside the nodes' own network namespaces, which end with the nodes.
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
    """Routes of the host that overlap ours and are not ours, as `range dev name`."""
    ours = {BRIDGE}
    found = []
    for target in (HOST_RANGE, POD_RANGE):
        for route in json.loads(run(["ip", "-json", "route", "show", "root", target])):
            if route.get("dev") not in ours:
                found.append(f"{route['dst']} dev {route.get('dev')}")
    return found


def up() -> None:
    """Make the bridge with the host's address."""
    if BRIDGE in links():
        return
    run(["ip", "link", "add", BRIDGE, "type", "bridge"])
    run(["ip", "address", "add", f"{HOST}/{PREFIX}", "dev", BRIDGE])
    run(["ip", "link", "set", BRIDGE, "up"])


def connect(node: NodeAddress, pid: int) -> None:
    """Plug a cable from the bridge into the network namespace of `pid`; there it is called eth0."""
    if node.host_link in links():
        run(["ip", "link", "delete", node.host_link])
    peer = f"{node.host_link}p"
    run(["ip", "link", "add", node.host_link, "type", "veth", "peer", "name", peer])
    run(["ip", "link", "set", node.host_link, "master", BRIDGE, "up"])
    run(["ip", "route", "replace", node.pods, "via", node.address, "dev", BRIDGE])
    run(["ip", "link", "set", peer, "netns", str(pid), "name", "eth0"])


def down() -> None:
    """Remove bridge and cables; the routes go with the bridge."""
    present = links()
    for name in (*(node.host_link for node in NODES), BRIDGE):
        if name in present:
            # A dead node's cable may vanish between the listing and here.
            with contextlib.suppress(ClusterError):
                run(["ip", "link", "delete", name])
    if left := [name for name in links() if name.startswith(BRIDGE)]:
        raise ClusterError(f"network interfaces could not be removed: {', '.join(left)}")
