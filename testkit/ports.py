"""Ports of this machine for servers that tests start."""

from megatron_trainer import listening

LOOPBACK = "127.0.0.1"


def free_port(address: str = LOOPBACK) -> int:
    """Return a port of an address of this machine that nothing listens on.

    It stays free until the server listens, also for a server that is started again much later, unless
    another caller draws the same one of 10,000. Raises OSError if the address is none of this machine.
    """
    return listening.free_port(address)
