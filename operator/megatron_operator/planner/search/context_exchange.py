"""What attention requires of how context-parallel ranks exchange keys and values (Transformer Engine)."""

import math
from typing import Final

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.parallel_dims import ParallelDims
from megatron_operator.planner.divisors import divisors
from megatron_operator.planner.estimate.model_shape import ModelShape

_FIELD: Final = "spec.parallelism.cpCommType"


def check_exchange(
    shape: ModelShape,
    dims: ParallelDims,
    kind: str | None,
    levels: tuple[int, ...],
    found: Diagnostics,
    *,
    world: int,
    seq_length: int,
) -> None:
    """Add an error for an exchange that attention does not take, or that does not split its heads evenly.

    `levels` are the ranks of each level of context parallelism, where it has any.
    """
    takes = ("a2a",) if shape.sinks else ("a2a", "allgather")
    if (shape.sinks or shape.window) and kind not in takes:
        what = "attention sinks" if shape.sinks else "windowed attention"
        found.error(
            _FIELD,
            f"is {kind or 'p2p'}, but Transformer Engine supports {what} with {' and '.join(takes)} only",
            f"set {' or '.join(takes)}, or contextParallelSize 1",
        )
    # What takes any number of heads.
    other = None if shape.sinks else "allgather" if shape.window else "p2p"
    heads, groups = shape.heads // dims.tp, max(shape.groups // dims.tp, 1)
    common = math.gcd(heads, groups)
    splits = f"{kind} splits the {heads} heads and {groups} groups of a TP rank over"
    if kind == "a2a" and common % dims.cp:
        possible = [
            n for n in divisors(common) if world % (dims.tp * dims.pp * n) == seq_length % (2 * n) == 0
        ]
        found.error(_FIELD, f"{splits} CP {dims.cp} ranks", _fix(other, "CP", possible))
    elif kind == "a2a+p2p" and levels and common % max(1, levels[0]):
        # Ranks of the first level exchange heads, those of the second keys and values.
        possible = divisors(math.gcd(common, dims.cp))
        fix = _fix(other, "first level", possible)
        found.error(_FIELD, f"{splits} the {levels[0]} ranks of the first level", fix)


def _fix(other: str | None, name: str, sizes: list[int]) -> str:
    sizes_above_1 = " or ".join(str(size) for size in sizes if size > 1)
    smaller = f"a {name} of {sizes_above_1}" if sizes_above_1 else "a smaller tensorModelParallelSize"
    return f"set {other}, or {smaller}" if other else f"set {smaller}"
