"""The full profile's network: one bridge on the host, one address a node, one range of pods a node.

A node is a set of namespaces with one interface, `eth0`, on the bridge. Its pods are behind a bridge of its
own; the host and the other nodes reach them by a route through the node, so nothing is translated.
"""

from __future__ import annotations

from dataclasses import dataclass

BRIDGE = "megatron0"
HOST = "10.245.0.1"
"""API server, DNS and registry listen here; it exists on no other network."""
HOST_RANGE = "10.245.0.0/24"
PREFIX = 24
POD_RANGE = "10.244.0.0/16"
DNS_DOMAIN = "cluster.local"
REGISTRY_PORT = 5000
REGISTRY = "registry.local"
"""The name in image references; each node's containerd is told where it is."""


@dataclass(frozen=True)
class NodeAddress:
    """One node: its name, its address on the bridge, its pods' range."""

    name: str
    address: str
    pods: str

    @property
    def host_link(self) -> str:
        """The host's end of the node's cable (at most 15 characters)."""
        return f"{BRIDGE}-{self.name.removeprefix('node-')}"


NODES = (
    NodeAddress("node-0", "10.245.0.10", "10.244.0.0/24"),
    NodeAddress("node-1", "10.245.0.11", "10.244.1.0/24"),
)
SYSTEM_NODE = NODES[0].name
"""Carries the training-operator and the storage provisioner: fault tests stop the other one."""
