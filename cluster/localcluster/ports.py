"""TCP ports of this machine."""

from __future__ import annotations

import random
import socket

BELOW_EPHEMERAL = range(20000, 30000)
"""Linux gives any connection and server that asks for none a port from 32768 to 60999."""


def port_is_free(address: str, port: int) -> bool:
    """Whether a TCP socket can be bound to the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A TCP port of the loopback address for a server that starts later; nobody listens on it now."""
    while not port_is_free("127.0.0.1", port := random.choice(BELOW_EPHEMERAL)):
        pass
    return port
