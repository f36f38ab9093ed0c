"""What the operator and its planning process exchange.

Frames are pickles with their length before them: both sides run the same release, and the pipes are private.
"""

import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from megatron_operator.api.errors import InvalidRecipeError

LENGTH: Final = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class Call:
    """A call of `function` with `arguments`, and as the last one the configuration, if it has one."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    with_config: bool
    new_config: bytes | None
    """A pickled configuration, for this call and all that follow; None where the last one holds."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The outcome of a call: its result, its error, or that memory was not enough."""

    result: Any = None
    invalid: InvalidRecipeError | None = None
    error: Exception | None = None
    out_of_memory: bool = False


def frame(value: object) -> bytes:
    """A value as it is sent."""
    payload = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(payload)) + payload
