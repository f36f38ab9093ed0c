"""Typed fields that Megatron refuses beside another one when it starts.

Sources: `validate_args`, `TransformerConfig.__post_init__`, `GPTModel` and `group_limited_topk` of
megatron-core 0.19.2. tests/megatron/test_fields_alone.py gives each field by itself to all but `GPTModel`.
"""

from collections.abc import Iterator
from typing import Final

from megatron_operator.api.errors import FieldError
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.checks.ineffective_flags import without_ineffective_settings
from megatron_operator.planner.checks.own_image import has_own_image

_MODEL: Final = "spec.model."
_DEFAULT_TOPK: Final = 2
_OF_PREDICTION: Final = ("rope", "none")
"""Position embeddings with which Megatron builds layers of multi-token prediction."""


def field_errors(resolved: ResolvedRecipe) -> list[FieldError]:
    """Errors for fields with which Megatron's own loop does not start."""
    if resolved.engine != "megatron":
        return []
    resolved = without_ineffective_settings(resolved)
    found = [*_attention_errors(resolved), *_position_errors(resolved)]
    if resolved.model.num_experts:
        found += [*_topk_errors(resolved), *_group_errors(resolved)]
    if not has_own_image(resolved):
        # Other releases of Megatron bound these less.
        found += [*_prediction_errors(resolved), *_expert_bias_errors(resolved)]
    return found


def _attention_errors(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    layers = resolved.megatron_args.get("spec")
    is_local = isinstance(layers, list) and layers[:1] == ["local"]
    if resolved.training.attention_backend == "local" and not is_local:
        message = "local is refused by Megatron without a specification of layers of that name (--spec local)"
        fix = "leave it out: with transformerImpl local, attention is local without it"
        if resolved.training.transformer_impl != "local":
            fix = f"set unfused, or {fix}"
        yield FieldError("spec.training.attentionBackend", message, fix)
    training = resolved.training
    in_fp32 = resolved.profile.platform == "gpu" and not (training.bf16 or training.fp16)
    if in_fp32 and not is_local and training.attention_backend in ("flash", "fused"):
        message = "but Transformer Engine has no such kernel for FP32 (bf16 false)"
        yield FieldError(
            "spec.training.attentionBackend",
            f"{training.attention_backend}, {message}",
            "set auto or unfused, or bf16: true",
        )


def _position_errors(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    """Latent attention rotates by itself: `GPTModel` has no settings of YaRN for it."""
    model = resolved.model
    if not model.multi_latent_attention or model.position_embedding_type != "yarn":
        return
    yield _error(
        resolved,
        {
            "positionEmbeddingType": "set positionEmbeddingType: rope and ropeType: yarn",
            "multiLatentAttention": "set positionEmbeddingType: rope and ropeType: yarn, or leave it out",
        },
        "positionEmbeddingType yarn with multiLatentAttention, whose YaRN is a ropeType",
    )


def _topk_errors(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    """Softmax over a single chosen expert is 1, whatever the router computes."""
    model = resolved.model
    scores = model.moe_router_score_function or "softmax"
    if (model.moe_router_topk or _DEFAULT_TOPK) > 1 or scores != "softmax" or model.moe_router_pre_softmax:
        return
    if model.moe_router_load_balancing_type == "sinkhorn":
        return
    yield _error(
        resolved,
        {
            "moeRouterTopk": "set moeRouterPreSoftmax: true, or at least 2",
            "moeRouterPreSoftmax": "set true, or moeRouterTopk of at least 2",
            "moeRouterScoreFunction": "set moeRouterPreSoftmax: true, or sigmoid",
            "moeRouterLoadBalancingType": "set moeRouterPreSoftmax: true",
        },
        "moeRouterTopk 1 with a softmax over the chosen experts, which gives the router no gradient",
    )


def _group_errors(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    """Groups of equal size, of which a token is routed to some and finds enough experts in each."""
    model = resolved.model
    experts, groups, chosen = model.num_experts, model.moe_router_num_groups, model.moe_router_group_topk
    if not experts or not groups or not chosen:
        return
    if experts % groups:
        yield _error(
            resolved,
            {
                "moeRouterNumGroups": f"set a divisor of {experts}",
                "numExperts": f"set a multiple of {groups}",
            },
            f"moeRouterNumGroups {groups} does not divide numExperts {experts}",
        )
    elif chosen > groups:
        yield _error(
            resolved,
            {
                "moeRouterGroupTopk": f"set at most {groups}",
                "moeRouterNumGroups": f"set at least {chosen}, or a smaller moeRouterGroupTopk",
            },
            f"moeRouterGroupTopk {chosen} is above moeRouterNumGroups {groups}",
        )
    elif (each := (model.moe_router_topk or _DEFAULT_TOPK) // chosen) > experts // groups:
        fewer = f"set at most {experts // each}"
        yield _error(
            resolved,
            {
                "moeRouterNumGroups": fewer,
                "moeRouterGroupTopk": "set more groups of a token",
                "moeRouterTopk": f"set less than {(experts // groups + 1) * chosen}",
                "numExperts": f"set at least {each * groups}",
            },
            f"moeRouterTopk {model.moe_router_topk} is {each} experts of each of {chosen} groups, and"
            f" moeRouterNumGroups {groups} leaves {experts // groups} in one",
        )


def _prediction_errors(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    model = resolved.model
    positions = model.position_embedding_type or "learned_absolute"
    if not model.mtp_num_layers or positions in _OF_PREDICTION:
        return
    yield _error(
        resolved,
        {
            "mtpNumLayers": "leave it out, or set positionEmbeddingType: rope",
            "positionEmbeddingType": "set rope, or a recipe without mtpNumLayers",
        },
        f"mtpNumLayers {model.mtp_num_layers} with positionEmbeddingType {positions}, which Megatron does not"
        " support",
    )


def _expert_bias_errors(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    model = resolved.model
    scores = model.moe_router_score_function or "softmax"
    if not model.num_experts or not model.moe_router_enable_expert_bias or scores == "sigmoid":
        return
    yield _error(
        resolved,
        {
            "moeRouterEnableExpertBias": "set moeRouterScoreFunction: sigmoid, or leave it out",
            "moeRouterScoreFunction": "set sigmoid, or moeRouterEnableExpertBias: false",
        },
        f"moeRouterEnableExpertBias true with moeRouterScoreFunction {scores}, whose scores a bias does not"
        " correct",
    )


def _error(resolved: ResolvedRecipe, fixes: dict[str, str], message: str) -> FieldError:
    """An error of the first field that the recipe itself sets; `fixes` are those of the fields in order."""
    own = [name for name in fixes if resolved.is_set_by_user(f"model.{name}")]
    name = own[0] if own else next(iter(fixes))
    return FieldError(_MODEL + name, message, fixes[name])
