"""Runs that were given other places and are not there yet, as their status records it."""

from typing import Final

from megatron_operator.api.conditions import Phase
from megatron_operator.api.times import seconds
from megatron_operator.lifecycle.growths import LONGEST_GROWTH
from megatron_operator.lifecycle.incident_history import unrecovered
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.status_builder import StatusBuilder

_KINDS: Final = ("resize", "maintenance")
"""Kinds of incidents with which a run is given other places."""


def is_relocating(recipe: Object, now: float) -> bool:
    """Whether a run was resized, moved or sent to another topology domain, and its pods are not all there.

    A change of the domain is no incident; it is over once the run has its new job. `now` is in seconds since
    the epoch: what began LONGEST_GROWTH before is not expected to end.
    """
    if (recipe.get("status") or {}).get("phase") not in (Phase.STARTING, Phase.RECOVERING):
        return False
    status = StatusBuilder.of(dict(recipe), now)
    if status.suspended:
        return False
    open_ = unrecovered(status.recovery)
    recent = open_ is not None and now - (seconds(open_.time) or 0.0) < LONGEST_GROWTH
    moves = open_ is not None and recent and open_.kind in _KINDS
    return moves or status.recovery.outgoing_job is not None
