"""Sockets on which a pod listens for others."""

import contextlib
import errno
import random
import socket
from typing import Final

_BELOW_EPHEMERAL: Final = range(20000, 30000)
"""Below Kubernetes' NodePorts (30000 to 32767) and Linux' ephemeral ports (32768 to 60999 by default)."""


def listen(port: int, backlog: int) -> socket.socket:
    """Listen on all addresses, those of IPv6 too where there are any. Raises OSError if the port is taken."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog
            )
    return socket.create_server(("", port), backlog=backlog)


def free_port(address: str = "") -> int:
    """Return a port of `address` (all addresses by default) for a server that another process starts later.

    The kernel gives ephemeral ports to any connection and server that asks for none, so one of those might be
    taken by then. Raises OSError if the address is none of this machine.
    """
    while True:
        port = random.choice(_BELOW_EPHEMERAL)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            return port
