"""Multi-head latent attention of a model: its sizes, and what such a model must and must not set."""

from dataclasses import dataclass

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.model import ModelSpec


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Sizes of multi-head latent attention in elements; without `q_rank` the query is not compressed."""

    q_rank: int | None
    kv_rank: int
    qk_dim: int
    """Width of a head's queries and keys without their rotary part."""
    rope_dim: int
    """Width of the rotary part: of each head's query, and of the one key that all heads share."""
    v_dim: int


def latent_attention(model: ModelSpec, found: Diagnostics) -> LatentAttention | None:
    """Those of a model; None where its attention is another one. Errors go to `found`."""
    if not model.multi_latent_attention:
        return None
    sizes = ("kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
    for name in sizes:
        if getattr(model, name) is None:
            found.error(
                f"spec.model.{ModelSpec.model_fields[name].alias}",
                "is missing",
                "set it: multiLatentAttention needs kvLoraRank, qkHeadDim, qkPosEmbHeadDim and vHeadDim",
            )
    if model.num_query_groups is not None and model.num_query_groups != model.num_attention_heads:
        found.error(
            "spec.model.numQueryGroups",
            f"{model.num_query_groups} is set together with multiLatentAttention",
            "leave one of the two out: latent attention has no query groups",
        )
    if model.rope_type == "rope" and not model.no_rope_fusion:
        found.error(
            "spec.model.noRopeFusion",
            "is not set, but latent attention with ropeType rope has no fused rotary kernel",
            "set noRopeFusion: true",
        )
    return LatentAttention(
        q_rank=model.q_lora_rank,
        kv_rank=model.kv_lora_rank or 0,
        qk_dim=model.qk_head_dim or 0,
        rope_dim=model.qk_pos_emb_head_dim or 0,
        v_dim=model.v_head_dim or 0,
    )
