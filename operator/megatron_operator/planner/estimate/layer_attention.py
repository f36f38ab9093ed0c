"""Which attention each layer has, from the sizes of an architecture."""

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import shown
from megatron_operator.catalog.architecture import Architecture, HeadsSpec
from megatron_operator.planner.estimate.attention_kinds import Compressed, Heads, Index, Indexed
from megatron_operator.planner.estimate.layer_pattern import ratio_pattern, window_pattern

Special = Heads | Indexed | Compressed | None

_COMPRESSED = ("csa_window_size", "q_lora_rank", "o_groups", "o_lora_rank")
_INDEX = ("dsa_indexer_n_heads", "dsa_indexer_head_dim", "dsa_indexer_topk")
_INDEXED_RATIO = 4
"""Ratio of the layers whose compressed keys are selected; those of ratio 128 have few enough for all
(`_DSV4_LAYER_TYPE_TO_COMPRESS_RATIO` of Megatron-Bridge)."""


def layer_attention(
    model: Architecture, layers: int, found: Diagnostics
) -> tuple[tuple[Special, ...], Special]:
    """What the attention of each layer has beyond the model's sizes, and that of a multi-token prediction.

    Adds an error to `found` for each size that is missing and for an invalid pattern.
    """
    index = None
    if _any(model, _INDEX):
        _require(model, _INDEX, "an indexer", found)
        index = Index(
            model.dsa_indexer_n_heads or 1, model.dsa_indexer_head_dim or 1, model.dsa_indexer_topk or 1
        )
    if model.csa_compress_ratios is not None:
        return _compressed(model, layers, index, found)
    if model.full_attention is not None:
        return _heads(model, model.full_attention, layers)
    if index is None:
        return (None,) * layers, None
    freq, offset = model.dsa_indexer_topk_freq or 1, max(model.dsa_indexer_skip_topk_offset or 0, 1)
    # `is_dsa_skip_topk_layer`, whose layers are numbered from 1.
    kinds = tuple(Indexed(index, shared=max(n + 1 - offset, 0) % freq != 0) for n in range(layers))
    return kinds, Indexed(index)


def _heads(model: Architecture, full: HeadsSpec, layers: int) -> tuple[tuple[Special, ...], Special]:
    """Heads of layers with and without a window. The layer of a prediction has one."""
    heads, hidden = model.num_attention_heads or 1, model.hidden_size or 1
    groups, head_dim = model.num_query_groups or heads, model.kv_channels or hidden // heads
    windowed = Heads(heads, groups, head_dim, windowed=True)
    other = Heads(
        full.num_attention_heads or heads,
        full.num_query_groups or groups,
        full.kv_channels or head_dim,
        windowed=False,
    )
    pattern = window_pattern(model.window_attn_skip_freq, layers)
    return tuple(windowed if each else other for each in pattern), windowed


def _compressed(
    model: Architecture, layers: int, index: Index | None, found: Diagnostics
) -> tuple[tuple[Special, ...], Special]:
    _require(model, _COMPRESSED, "csaCompressRatios", found)
    text = model.csa_compress_ratios or ""
    try:
        ratios = ratio_pattern(text, layers)
    except ValueError as error:
        found.error(
            "spec.model.csaCompressRatios",
            f"{shown(text)}: {error}",
            f"set a list of {layers} values 0 (window), 4 or 128 (compressed keys)",
        )
        ratios = (0,) * layers
    if _INDEXED_RATIO in ratios and index is None:
        _require(model, _INDEX, "csaCompressRatios with ratio 4", found)

    def of(ratio: int) -> Compressed:
        return Compressed(
            ratio=ratio,
            q_rank=model.q_lora_rank or 1,
            out_groups=model.o_groups or 1,
            out_rank=model.o_lora_rank or 1,
            window=model.csa_window_size or 1,
            index=index if ratio == _INDEXED_RATIO else None,
        )

    return tuple(map(of, ratios)), of(0)


def _any(model: Architecture, names: tuple[str, ...]) -> bool:
    return any(getattr(model, name) is not None for name in names)


def _require(model: Architecture, names: tuple[str, ...], needing: str, found: Diagnostics) -> None:
    for name in names:
        if getattr(model, name) is None:
            field = Architecture.model_fields[name].alias
            found.error(f"spec.model.{field}", "is missing", f"set it: {needing} needs it")
