"""Which rank is where: Megatron's order of ranks, the nodes of pods, and the groups of one rank."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from megatron_operator.api.recovery_status import Incident
from megatron_operator.api.status import Plan
from megatron_operator.manifests.job_backends import newest_by_place, node_rank

Object = dict[str, Any]
NODES_SHOWN: Final = 16
"""Nodes of one page."""
_MOST_RANKS: Final = 1 << 20
_MOST_PER_NODE: Final = 1024


@dataclass(frozen=True, slots=True)
class Position:
    """Coordinates of a rank, in Megatron's default order `tp-cp-ep-dp-pp`: tensor ranks are neighbours."""

    rank: int
    tp: int
    cp: int
    dp: int
    pp: int
    ep: int


@dataclass(frozen=True, slots=True)
class Cell:
    """A rank as it is drawn."""

    position: Position
    groups: tuple[str, ...]
    """Groups that it shares with the chosen rank: `TP`, `PP`."""
    failed: str | None
    """The last incident that began at it."""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A pod with its ranks."""

    number: int
    node: str | None
    """None where no pod is scheduled, or pods cannot be read."""
    pod: str | None
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """A part of the ranks of a run, by pod."""

    rows: tuple[NodeRow, ...]
    first: int
    """First node of the page, counted from 0."""
    nodes: int
    previous: int | None
    """First node of the page before; None on the first page."""
    following: int | None
    """First node of the page after; None on the last page."""
    chosen: Position | None
    groups: tuple[tuple[str, tuple[int, ...]], ...]
    """Groups of the chosen rank: name and ranks."""


def can_be_drawn(plan: Plan) -> bool:
    """Whether the sizes of a plan agree, and are such that drawing a page of it is little work."""
    sizes = (
        plan.tensor_model_parallel_size,
        plan.context_parallel_size,
        plan.data_parallel_size,
        plan.pipeline_model_parallel_size,
    )
    agree = min(sizes) > 0 and math.prod(sizes) == plan.world_size
    return agree and plan.world_size <= _MOST_RANKS and 0 < plan.per_node <= _MOST_PER_NODE


def position(plan: Plan, rank: int) -> Position:
    """Coordinates of a global rank. EP counts within the ranks that Megatron forms expert groups of."""
    tp, cp = plan.tensor_model_parallel_size, plan.context_parallel_size
    dp = plan.data_parallel_size
    expert = rank // max(1, plan.expert_tensor_parallel_size) % max(1, plan.expert_model_parallel_size)
    return Position(rank, rank % tp, rank // tp % cp, rank // (tp * cp) % dp, rank // (tp * cp * dp), expert)


def groups_of(plan: Plan, rank: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The tensor-, context-, data- and pipeline-parallel groups of a rank, those of one rank left out."""
    tp, cp, dp = plan.tensor_model_parallel_size, plan.context_parallel_size, plan.data_parallel_size
    strides = (
        ("TP", 1, tp),
        ("CP", tp, cp),
        ("DP", tp * cp, dp),
        ("PP", tp * cp * dp, plan.pipeline_model_parallel_size),
    )
    found = []
    for name, stride, size in strides:
        if size > 1:
            first = rank - rank // stride % size * stride
            found.append((name, tuple(first + stride * n for n in range(size))))
    return tuple(found)


def placement(
    plan: Plan,
    pods: Sequence[Object],
    incidents: Sequence[Incident],
    first: int = 0,
    chosen: int | None = None,
) -> Placement:
    """Up to NODES_SHOWN nodes from number `first` on; `chosen` is the rank whose groups are marked."""
    nodes = max(1, plan.world_size // max(1, plan.per_node))
    first = min(max(0, first), (nodes - 1) // NODES_SHOWN * NODES_SHOWN)
    if chosen is not None and not 0 <= chosen < plan.world_size:
        chosen = None
    groups = () if chosen is None else groups_of(plan, chosen)
    by_number = {node_rank(pod): pod for pod in newest_by_place(pods)}
    failed = {each.rank: each.cause for each in incidents if each.rank is not None}

    def cell(rank: int) -> Cell:
        shared = tuple(name for name, ranks in groups if rank in ranks)
        return Cell(position(plan, rank), shared, failed.get(rank))

    def row(number: int) -> NodeRow:
        pod = by_number.get(number) or {}
        ranks = range(number * plan.per_node, min((number + 1) * plan.per_node, plan.world_size))
        return NodeRow(
            number,
            (pod.get("spec") or {}).get("nodeName"),
            (pod.get("metadata") or {}).get("name"),
            tuple(map(cell, ranks)),
        )

    end = min(first + NODES_SHOWN, nodes)
    return Placement(
        tuple(map(row, range(first, end))),
        first,
        nodes,
        first - NODES_SHOWN if first else None,
        end if end < nodes else None,
        None if chosen is None else position(plan, chosen),
        groups,
    )
