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
    if (shape.sinks or shape.window) and kind != "a2a":
        what = "attention sinks" if shape.sinks else "windowed attention"
        found.error(
            _FIELD,
            f"is {kind or 'p2p'}, but Transformer Engine supports {what} with a2a only",
            "set a2a, or contextParallelSize 1",
        )
    heads, groups = shape.heads // dims.tp, max(shape.groups // dims.tp, 1)
    common = math.gcd(heads, groups)
    splits = f"{kind} splits the {heads} heads and {groups} groups of a TP rank over"
    if kind == "a2a" and common % dims.cp:
        possible = [
            n for n in divisors(common) if world % (dims.tp * dims.pp * n) == seq_length % (2 * n) == 0
        ]
        found.error(_FIELD, f"{splits} CP {dims.cp} ranks", _fix("CP", possible))
    elif kind == "a2a+p2p" and levels and common % max(1, levels[0]):
        # Ranks of the first level exchange heads, those of the second keys and values.
        possible = divisors(math.gcd(common, dims.cp))
        found.error(
            _FIELD, f"{splits} the {levels[0]} ranks of the first level", _fix("first level", possible)
        )


def _fix(name: str, sizes: list[int]) -> str:
    smaller = " or ".join(str(size) for size in sizes if size > 1)
    return f"set p2p, or {f'a {name} of {smaller}' if smaller else 'a smaller tensorModelParallelSize'}"
