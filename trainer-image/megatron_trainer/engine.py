"""Which engine trains, Megatron's own loop or Megatron-Bridge, and how its arguments are read."""

import os
from collections.abc import Sequence
from importlib.util import find_spec

from megatron_contract.environment import ENV_ENGINE

from megatron_trainer import bridge_flags, flags
from megatron_trainer.flags import Flags


def is_bridge() -> bool:
    """Whether this pod runs a recipe function of Megatron-Bridge."""
    return os.environ.get(ENV_ENGINE) == "bridge"


def read(argv: Sequence[str]) -> Flags:
    """Read what concerns the launcher. Raises FlagError."""
    return bridge_flags.read(argv) if is_bridge() else flags.read(argv)


def complete(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments with those added that recovery needs, and the added words. Raises FlagError."""
    return bridge_flags.complete(argv) if is_bridge() else flags.complete(argv)


def why_absent() -> str | None:
    """Return why the engine cannot be started, None if it can."""
    if is_bridge() and None in map(find_spec, ("megatron.bridge", "modelopt")):
        return (
            f"{ENV_ENGINE}=bridge: this image lacks Megatron-Bridge or what it imports; install "
            "requirements-bridge-run.txt and requirements-bridge.txt of trainer-image on Python 3.12"
        )
    return None
