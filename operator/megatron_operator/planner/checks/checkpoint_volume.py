"""Whether the checkpoints of a run fit onto the volumes whose sizes are known."""

import math
from fractions import Fraction

from megatron_operator.api import quantity
from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.status import Plan
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.batch import iterations
from megatron_operator.planner.estimate.checkpoint import checkpoint_bytes

_FEWEST = 2
"""The newest complete checkpoint is deleted after the next one is complete."""
_WITH_BEST = 3
"""The best one may be older than the newest."""
_GIB = 2**30
_OF_PLATFORM = "of the platform:"


def check_checkpoint_volumes(resolved: ResolvedRecipe, plan: Plan, found: Diagnostics) -> None:
    """An error for a size of the recipe without room for two checkpoints, a note where not all to keep fit.

    Existing claims, whose size is not known here, are not checked.
    """
    checkpoint, each = resolved.checkpoint, checkpoint_bytes(resolved, plan)
    if not each:  # 0: adapters that no layer of the model has, which is an error of its own
        return
    volume = checkpoint.volume
    if volume is not None and volume.claim_name is None and volume.size is not None:
        own = not {"checkpoint.volume", "checkpoint.volume.size"} & resolved.origins.keys()
        best = bool(checkpoint.keep_best and checkpoint.keep)
        if not _has_room("checkpoint.volume.size", volume.size, each, found, own=own, best=best):
            return
        _note_those_to_keep(resolved, volume.size, each, found, own=own)
    if checkpoint.local is not None:
        _has_room("checkpoint.local.sizeLimit", checkpoint.local.size_limit, each, found, own=True)


def checkpoint_volume_warnings(resolved: ResolvedRecipe, plan: Plan) -> list[str]:
    """Warnings of a size without room for the checkpoints to keep, or of the platform's even for two."""
    found = Diagnostics()
    check_checkpoint_volumes(resolved, plan, found)
    return found.notes


def _has_room(field: str, size: str, each: int, found: Diagnostics, *, own: bool, best: bool = False) -> bool:
    """Whether two checkpoints of `each` bytes fit, with the `best` three.

    `own`: the recipe states the size, not the platform.
    """
    fewest = _WITH_BEST if best else _FEWEST
    if quantity.parse(size) >= fewest * each:
        return True
    those = "three checkpoints of {}, the best, the newest" if best else "two checkpoints of {}, the newest"
    message = f"{size} has no room for {those.format(_shown(each))} and the one being written"
    fix = f"set at least {_rounded_up(fewest * each)}"
    if own:
        found.error(f"spec.{field}", message, fix)
    else:
        found.note(f"{field} {_OF_PLATFORM} {message}: {fix}")
    return False


def _note_those_to_keep(
    resolved: ResolvedRecipe, size: str, each: int, found: Diagnostics, *, own: bool
) -> None:
    checkpoint = resolved.checkpoint
    room, keep = int(quantity.parse(size) / each), checkpoint.keep
    others = 2 if checkpoint.keep_best else 1
    if keep is not None:
        best = ", the best" if checkpoint.keep_best else ""
        needed, why = keep + others, f"keep {keep}{best} and the one being written need"
    else:
        length = iterations(resolved.training)
        if length is None or checkpoint.save_interval is None:
            return
        needed = math.ceil(length / checkpoint.save_interval)
        why = f"without keep the run's {needed} are all kept, which needs"
    if room >= needed:
        return
    fewer = room - others
    where, fix = "checkpoint.volume.size", "set that size" + (f", or keep {fewer}" if fewer > 0 else "")
    if not own:
        where, fix = f"{where} {_OF_PLATFORM}", f"set checkpoint.keep: {fewer}" if fewer > 0 else fix
    found.note(
        f"{where} {size} has room for {room} checkpoints of {_shown(each)}; {why} "
        f"{_rounded_up(needed * each)}: {fix}"
    )


def _shown(size: int) -> str:
    return f"{size / _GIB:.1f} GiB" if size >= _GIB else f"{size / 2**20:.1f} MiB"


def _rounded_up(size: int) -> str:
    """A quantity of whole gibibytes, or of mebibytes below one."""
    return quantity.memory(Fraction(math.ceil(size / _GIB) * _GIB if size >= _GIB else size))
