"""Sparse attention whose layers share a selection of keys: only some layers have an indexer."""

from megatron_operator.planner.estimate.attention_kinds import Indexed
from megatron_operator.planner.estimate.layers import LayerKind
from megatron_operator.planner.estimate.model_shape import ModelShape, distinct_kinds


def shares_selection(shape: ModelShape) -> bool:
    """Whether layers attend to the keys that the indexer of an earlier one selected."""
    return any(map(_shares, distinct_kinds(shape)))


def selecting_layers(shape: ModelShape) -> tuple[int, ...]:
    """The layers, counted from 0, that attend to no keys which an earlier one selected."""
    return tuple(n for n, kind in enumerate(shape.kinds) if not _shares(kind))


def _shares(kind: LayerKind) -> bool:
    return isinstance(kind.attention, Indexed) and kind.attention.shared
