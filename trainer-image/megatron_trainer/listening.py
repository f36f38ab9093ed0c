"""Sockets on which a pod listens for others."""

import contextlib
import socket


def listen(port: int, backlog: int) -> socket.socket:
    """Listen on all addresses, those of IPv6 too where there are any. Raises OSError if the port is taken."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog
            )
    return socket.create_server(("", port), backlog=backlog)
