"""Ports of this machine for servers that tests start."""

import errno
import random
import socket

LOOPBACK = "127.0.0.1"
_OUTSIDE_THE_EPHEMERAL_RANGE = range(20000, 30000)
"""Below Linux' default range (32768 to 60999), from which any connection of another test takes a port."""


def free_port(address: str = LOOPBACK) -> int:
    """Return a port of an address of this machine that nothing listens on.

    It stays free until the server listens, also for a server that is started again much later, unless
    another caller draws the same one of 10,000. Raises OSError if the address is none of this machine.
    """
    while True:
        port = random.choice(_OUTSIDE_THE_EPHEMERAL_RANGE)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            return port
