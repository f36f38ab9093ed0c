"""The full profile's network: one bridge on the host, one address and one pod range per node.

A node is a set of namespaces with one interface, `eth0`, on the bridge. Its pods are behind a bridge of their
own; the host and the other nodes reach them by a route through the node, without address translation.
"""

from __future__ import annotations

from dataclasses import dataclass

BRIDGE = "megatron0"
HOST = "10.245.0.1"
"""API server, DNS and registry listen on this address, which exists on the bridge only."""
HOST_RANGE = "10.245.0.0/24"
PREFIX = 24
"""Bits of the network part of an address in HOST_RANGE."""
POD_RANGE = "10.244.0.0/16"
DNS_DOMAIN = "cluster.local"
REGISTRY_PORT = 5000
REGISTRY = "registry.local"
"""The registry's name in image references; each node's containerd maps it to HOST."""


@dataclass(frozen=True)
class NodeAddress:
    """One node: its name, its address on the bridge, the range of its pods."""

    name: str
    address: str
    pods: str

    @property
    def host_link(self) -> str:
        """The host's end of the node's veth pair (at most 15 characters)."""
        return f"{BRIDGE}-{self.name.removeprefix('node-')}"


NODES = (
    NodeAddress("node-0", "10.245.0.10", "10.244.0.0/24"),
    NodeAddress("node-1", "10.245.0.11", "10.244.1.0/24"),
)
SYSTEM_NODE = NODES[0].name
"""Runs the training-operator and the storage provisioner: fault tests stop the other node."""
