"""Settings without effect in Megatron: an error in a recipe, dropped with a note in the catalog.

The dependencies between flags are those of megatron-core 0.19.2, which tests/megatron runs.
"""

from collections.abc import Iterator

from megatron_operator.api.base import ApiModel
from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import shown_key
from megatron_operator.api.model import ModelSpec
from megatron_operator.api.training import ParallelismSpec, TrainingSpec
from megatron_operator.catalog.architecture import Architecture
from megatron_operator.catalog.resolved import ResolvedRecipe

_LATENT = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim", "rope_type")
_YARN = (
    "yarn_original_max_position_embeddings",
    "yarn_beta_fast",
    "yarn_beta_slow",
    "no_yarn_correction_range_round_to_int",
)
_LEFT_TO_SINKHORN = (
    "moe_router_score_function",
    "moe_router_pre_softmax",
    "moe_router_num_groups",
    "moe_router_group_topk",
    "moe_router_topk_scaling_factor",
    "moe_router_enable_expert_bias",
    "moe_router_bias_update_rate",
)
"""Sinkhorn chooses experts and their weights from the logits alone (`sinkhorn_load_balancing`)."""
_SECTIONS: dict[str, type[ApiModel]] = {
    "model": ModelSpec,
    "training": TrainingSpec,
    "parallelism": ParallelismSpec,
}


def ineffective_settings(resolved: ResolvedRecipe) -> dict[tuple[str, str], str]:
    """Section and field of every setting without effect -> the setting that it requires."""
    return {
        (section, name): need
        for section, name, need in _without_effect(resolved)
        if getattr(getattr(resolved, section), name) not in (None, False)
    }


def _without_effect(resolved: ResolvedRecipe) -> Iterator[tuple[str, str, str]]:
    m, t, p = resolved.model, resolved.training, resolved.parallelism
    if m.position_embedding_type not in ("rope", "yarn"):
        for name in ("rotary_base", "rotary_percent", "no_rope_fusion"):
            yield "model", name, "positionEmbeddingType rope"
    if m.position_embedding_type != "yarn" and m.rope_type != "yarn":
        yield "model", "rotary_scaling_factor", "positionEmbeddingType yarn"
    if m.multi_latent_attention:
        yield from _of_latent_attention(m)
    needed = "ropeType" if m.multi_latent_attention else "positionEmbeddingType"
    if (m.rope_type if m.multi_latent_attention else m.position_embedding_type) != "yarn":
        for name in _YARN:
            yield "model", name, f"{needed} yarn"
    if not m.quick_geglu:
        for name in ("glu_linear_offset", "activation_func_clamp_value"):
            yield "model", name, "quickGeglu: true"
    if not m.window_size:
        yield "model", "window_attn_skip_freq", "windowSize"
    if not m.use_rope_scaling:
        yield "model", "rope_scaling_factor", "useRopeScaling: true"
    if m.position_embedding_type != "rope" or m.multi_latent_attention:
        for name in ("use_rope_scaling", "rope_scaling_factor"):
            yield "model", name, "positionEmbeddingType rope without multiLatentAttention"
    if not m.num_experts:
        for name in ModelSpec.model_fields:
            if name.startswith("moe_"):
                yield "model", name, "numExperts"
    else:
        yield from _of_experts(m)
    if not m.multi_latent_attention:
        # DeepSeek-V4's attention compresses queries too.
        compressed = isinstance(m, Architecture) and m.csa_compress_ratios is not None
        for name in _LATENT:
            if not (compressed and name == "q_lora_rank"):
                yield "model", name, "multiLatentAttention: true"
    if not m.mtp_num_layers:
        yield "model", "mtp_loss_scaling_factor", "mtpNumLayers"
    if t.optimizer == "sgd":
        for name in ("adam_beta1", "adam_beta2", "adam_eps"):
            yield "training", name, "optimizer adam"
    has_one_kernel = t.transformer_impl == "local" and "spec" not in resolved.megatron_args
    if has_one_kernel and t.attention_backend not in ("auto", "local"):
        # Attention of local layers is `DotProductAttention`.
        yield "training", "attention_backend", "transformerImpl transformer_engine"
    if not m.num_experts and (p.expert_tensor_parallel_size or 1) > 1:
        yield "parallelism", "expert_tensor_parallel_size", "numExperts"
    if p.context_parallel_size == 1 and resolved.is_set_by_user("parallelism.contextParallelSize"):
        yield "parallelism", "cp_comm_type", "contextParallelSize above 1"
    if p.overlap_grad_reduce is False:
        yield "parallelism", "ddp_bucket_size", "overlapGradReduce: true"


def _of_latent_attention(m: ModelSpec) -> Iterator[tuple[str, str, str]]:
    """It has widths and projections of its own, and always rounds YaRN's range."""
    other = "a model without multiLatentAttention"
    yield "model", "no_yarn_correction_range_round_to_int", other
    yield "model", "add_qkv_bias", other
    if (m.hidden_size or 0) % (m.num_attention_heads or 1) == 0:
        # Megatron requires it of other widths all the same (`validate_args`).
        yield "model", "kv_channels", other
    if m.rope_type != "rope":
        yield "model", "rotary_percent", "ropeType rope"


def _of_experts(m: ModelSpec) -> Iterator[tuple[str, str, str]]:
    if not m.moe_shared_expert_intermediate_size:
        yield "model", "moe_shared_expert_gate", "moeSharedExpertIntermediateSize"
    if not m.moe_router_num_groups:
        yield "model", "moe_router_group_topk", "moeRouterNumGroups"
    if not m.moe_router_group_topk:
        yield "model", "moe_router_num_groups", "moeRouterGroupTopk"
    if m.moe_router_score_function not in (None, "softmax"):
        yield "model", "moe_router_pre_softmax", "moeRouterScoreFunction softmax"
    if not m.moe_router_enable_expert_bias:
        yield "model", "moe_router_bias_update_rate", "moeRouterEnableExpertBias: true"
    if "aux" not in (m.moe_router_load_balancing_type or "aux_loss"):
        yield "model", "moe_aux_loss_coeff", "a moeRouterLoadBalancingType with aux_loss"
    if m.moe_router_load_balancing_type == "sinkhorn":
        for name in _LEFT_TO_SINKHORN:
            yield "model", name, "a moeRouterLoadBalancingType other than sinkhorn"


def alias(section: str, name: str) -> str:
    """The path of a field below `spec`, in camelCase."""
    return f"{section}.{_SECTIONS[section].model_fields[name].alias}"


def check_ineffective_settings(resolved: ResolvedRecipe, found: Diagnostics) -> None:
    """An error for each one that the recipe itself sets, a note for each one of the catalog."""
    for (section, name), need in ineffective_settings(resolved).items():
        path = alias(section, name)
        value = getattr(getattr(resolved, section), name)
        if resolved.is_set_by_user(path):
            message = f"{shown_key(str(value))} has no effect without {need}"
            found.error(f"spec.{path}", message, f"set {need}, or leave it out")
        else:
            found.note(f"{path} {value} of the catalog is dropped: it has no effect without {need}")


def without_ineffective_settings(resolved: ResolvedRecipe) -> ResolvedRecipe:
    """The recipe without its settings that have no effect."""
    sections: dict[str, dict[str, None]] = {}
    for section, name in ineffective_settings(resolved):
        sections.setdefault(section, {})[name] = None
    return resolved.model_copy(
        update={
            section: getattr(resolved, section).model_copy(update=fields)
            for section, fields in sections.items()
        }
    )
