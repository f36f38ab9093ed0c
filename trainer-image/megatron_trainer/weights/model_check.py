"""Compares the model that config.json describes with the one that the arguments of a run build.

Weights of one model load into another one of the same shapes, whose logits are then wrong without an error.
"""

import argparse
import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn

from megatron_trainer import left_out_settings
from megatron_trainer.weights import cpu_model
from megatron_trainer.weights.conversion_error import ConversionError
from megatron_trainer.weights.huggingface_folder import HuggingFaceFolder

Settings = dict[str, Any]

FIELDS: Final[Mapping[str, str]] = {
    "num_layers": "numLayers",
    "hidden_size": "hiddenSize",
    "ffn_hidden_size": "ffnHiddenSize",
    "num_attention_heads": "numAttentionHeads",
    "num_query_groups": "numQueryGroups",
    "kv_channels": "kvChannels",
    "vocab_size": "vocabSize",
    "share_embeddings_and_output_weights": "untieEmbeddingsAndOutputWeights",
    "position_embedding_type": "positionEmbeddingType",
    "rotary_base": "rotaryBase",
    "rotary_percent": "rotaryPercent",
    "rotary_interleaved": "",
    "rope_scaling": "useRopeScaling",
    "rope_scaling_factor": "ropeScalingFactor",
    "seq_len_interpolation_factor": "",
    "no_rope_freq": "",
    "yarn_rotary_scaling_factor": "rotaryScalingFactor",
    "yarn_original_max_position_embeddings": "yarnOriginalMaxPositionEmbeddings",
    "yarn_beta_fast": "yarnBetaFast",
    "yarn_beta_slow": "yarnBetaSlow",
    "yarn_mscale": "",
    "yarn_mscale_all_dim": "",
    "yarn_correction_range_round_to_int": "noYarnCorrectionRangeRoundToInt",
    "normalization": "normalization",
    "layernorm_epsilon": "normEpsilon",
    "layernorm_zero_centered_gamma": "applyLayernorm1p",
    "apply_residual_connection_post_layernorm": "",
    "gated_linear_unit": "swiglu",
    "activation_func": "swiglu",
    "activation_func_clamp_value": "activationFuncClampValue",
    "glu_linear_offset": "gluLinearOffset",
    "add_bias_linear": "disableBiasLinear",
    "add_qkv_bias": "addQkvBias",
    "qk_layernorm": "qkLayernorm",
    "qk_l2_norm": "",
    "attention_output_gate": "",
    "softmax_type": "softmaxType",
    "softmax_scale": "",
    "window_size": "windowSize",
    "window_attn_skip_freq": "windowAttnSkipFreq",
    "experimental_attention_variant": "",
    "linear_attention_freq": "",
    "is_hybrid_model": "",
    "heterogeneous_block_specs": "",
    "use_mup": "",
    "mtp_num_layers": "mtpNumLayers",
    "num_moe_experts": "numExperts",
    "moe_layer_freq": "moeLayerFreq",
    "moe_ffn_hidden_size": "moeFfnHiddenSize",
    "moe_shared_expert_intermediate_size": "moeSharedExpertIntermediateSize",
    "moe_shared_expert_gate": "moeSharedExpertGate",
    "moe_router_topk": "moeRouterTopk",
    "moe_router_topk_limited_devices": "",
    "moe_router_score_function": "moeRouterScoreFunction",
    "moe_router_pre_softmax": "moeRouterPreSoftmax",
    "moe_router_enable_expert_bias": "moeRouterEnableExpertBias",
    "moe_router_num_groups": "moeRouterNumGroups",
    "moe_router_group_topk": "moeRouterGroupTopk",
    "moe_router_topk_scaling_factor": "moeRouterTopkScalingFactor",
    "moe_apply_probs_on_input": "",
    "moe_latent_size": "",
    "moe_mlp_glu_interleave_size": "",
    "moe_shared_expert_glu_interleave_size": "",
    "moe_router_load_balancing_type": "moeRouterLoadBalancingType",
    "moe_router_force_load_balancing": "",
    "moe_router_force_biased": "",
    "moe_input_jitter_eps": "",
    "multi_latent_attention": "multiLatentAttention",
    "q_lora_rank": "qLoraRank",
    "kv_lora_rank": "kvLoraRank",
    "qk_head_dim": "qkHeadDim",
    "qk_pos_emb_head_dim": "qkPosEmbHeadDim",
    "v_head_dim": "vHeadDim",
    "rope_type": "ropeType",
    "rotary_scaling_factor": "rotaryScalingFactor",
    "original_max_position_embeddings": "yarnOriginalMaxPositionEmbeddings",
    "beta_fast": "yarnBetaFast",
    "beta_slow": "yarnBetaSlow",
    "mscale": "",
    "mscale_all_dim": "",
}
"""Setting of Megatron's model that changes logits -> field below `spec.model`; empty: a flag has none."""

_ARGUMENTS: Final = {
    "num_moe_experts": ("num_experts",),
    "share_embeddings_and_output_weights": ("untie_embeddings_and_output_weights",),
    "rope_scaling": ("use_rope_scaling",),
    "seq_len_interpolation_factor": ("rotary_seq_len_interpolation_factor",),
    "num_query_groups": ("group_query_attention",),
    "layernorm_epsilon": ("norm_epsilon",),
    "layernorm_zero_centered_gamma": ("apply_layernorm_1p",),
    "gated_linear_unit": ("swiglu", "quick_geglu"),
    "activation_func": ("swiglu", "squared_relu", "quick_geglu"),
    "yarn_rotary_scaling_factor": ("rotary_scaling_factor",),
    "yarn_mscale": ("mscale",),
    "yarn_mscale_all_dim": ("mscale_all_dim",),
    "is_hybrid_model": ("hybrid_layer_pattern",),
    "heterogeneous_block_specs": (
        "heterogeneous_layers_config_path",
        "heterogeneous_layers_config_encoded_json",
    ),
    "position_embedding_type": ("use_rotary_position_embeddings", "add_position_embedding"),
}
"""Setting -> what Megatron's parser calls it, where that differs."""
_OF_ANY_RUN: Final = (
    *("--micro-batch-size", "1", "--train-iters", "1", "--lr", "1e-4", "--seq-length", "1"),
    *("--max-position-embeddings", "1", "--transformer-impl", "local", "--tokenizer-type", "NullTokenizer"),
    *("--no-masked-softmax-fusion", "--no-bias-gelu-fusion", "--no-bias-swiglu-fusion"),
    *("--no-bias-dropout-fusion", "--no-rope-fusion", "--no-persist-layer-norm"),
    "--no-gradient-accumulation-fusion",
)
"""Arguments without which Megatron builds no model on a CPU. None changes the model's logits."""
_NEUTRAL: Final = {
    "moe_router_topk_scaling_factor": 1.0,
    "moe_router_num_groups": 1,
    "moe_router_group_topk": 1,
}
"""Values that change as little as a setting that is left out."""
_YARN: Final = "yarn_"
_YARN_OF_LATENT_ATTENTION: Final = ("original_max_position_embeddings", "beta_fast", "beta_slow", "mscale")
_EXPERTS: Final = "moe_"
_NAMED: Final = 5


def require_same_model(folder: HuggingFaceFolder, words: Sequence[str]) -> None:
    """Raise ConversionError unless config.json describes the model that Megatron builds of these arguments.

    Names each setting that differs, with both values and the field of a recipe.
    """
    described, built = _described(folder), _built(words)
    found = list(_differences(described, built))
    if not found:
        return
    more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    raise ConversionError(
        f"{folder.path}/config.json describes another model than the run trains: "
        f"{'; '.join(found[:_NAMED])}{more}. Set the recipe to the values of config.json, or name the folder "
        "of the model that it trains"
    )


def _described(folder: HuggingFaceFolder) -> Settings:
    """Settings of the model that Bridge makes of config.json."""
    provider = cpu_model.make_provider(cpu_model.make_bridge(folder), "float32")
    for name, value in cpu_model.ON_CPU.items():
        if hasattr(provider, name):
            setattr(provider, name, value)
    try:
        provider.finalize()
    except (ValueError, AssertionError, TypeError) as error:
        raise ConversionError(f"{folder.path}/config.json is refused by Megatron: {_text(error)}") from error
    return _settings(provider)


def _built(words: Sequence[str]) -> Settings:
    """Settings of the model that Megatron's own loop builds of a run's arguments.

    Only arguments of the model are taken, so that those of GPUs and of the layout need not work here.
    """
    from megatron.training import arguments
    from megatron.training.argument_utils import gpt_config_from_args

    parser = arguments.add_megatron_arguments(_Parser(allow_abbrev=False))
    given = parser.parse_args(list(words))
    if given.spec is not None:
        raise ConversionError("Megatron's argument --spec names layers that config.json cannot describe")
    try:
        args = parser.parse_args(list(_OF_ANY_RUN))
        for setting in FIELDS:
            for name in (setting, *_ARGUMENTS.get(setting, ())):
                if hasattr(given, name):
                    setattr(args, name, getattr(given, name))
        args.rank, args.world_size = 0, 1
        with contextlib.redirect_stdout(io.StringIO()):
            # It prints all arguments.
            arguments.validate_args(args)
        config = gpt_config_from_args(args)
        left_out_settings.complete(config, args)
    except (OSError, ValueError, AssertionError, RuntimeError, TypeError) as error:
        raise ConversionError(f"Megatron refuses the arguments of the run: {_text(error)}") from error
    return _settings(config)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are those of the conversion."""

    def error(self, message: str) -> NoReturn:
        """Raise ConversionError."""
        raise ConversionError(f"Megatron refuses the arguments of the run: {message}")


def _text(error: Exception) -> str:
    return " ".join(str(error).split())[:400] or type(error).__name__


def _settings(config: Any) -> Settings:
    """What both kinds of configuration call the same, in one form."""
    found = {name: _plain(getattr(config, name, None)) for name in FIELDS}
    if found["moe_router_load_balancing_type"] not in ("sinkhorn", ["sinkhorn"]):
        # The others change the gradients only.
        found["moe_router_load_balancing_type"] = None
    # Biases of all linear layers are those of queries, keys and values too.
    found["add_qkv_bias"] = found["add_qkv_bias"] or found["add_bias_linear"]
    if None in (found["yarn_mscale"], found["yarn_mscale_all_dim"]):
        # What Megatron computes then is what it computes of these.
        found["yarn_mscale"], found["yarn_mscale_all_dim"] = 1.0, 0.0
    if found["multi_latent_attention"]:
        _leave_out_neutral_scaling(found)
    if found["num_moe_experts"]:
        found["moe_layer_freq"] = _with_experts(found["moe_layer_freq"], found["num_layers"])
    return {name: value for name, value in found.items() if _has_effect(name, found)}


def _leave_out_neutral_scaling(found: Settings) -> None:
    """Leave out YaRN of latent attention by a factor of 1, which is none; scores may be scaled without it."""
    if (found["rotary_scaling_factor"] or 1) <= 1:
        found["rope_type"] = "rope"
        found["mscale_all_dim"] = None
    if found["rope_type"] == "rope" and not found["mscale_all_dim"]:
        found["rotary_scaling_factor"] = None


def _plain(value: Any) -> Any:
    if callable(value):
        return value.__name__
    return list(value) if isinstance(value, tuple) else value


def _with_experts(frequency: Any, layers: int) -> list[int]:
    """1 for each layer with experts, 0 for each without."""
    if isinstance(frequency, list):
        return frequency
    return [int(layer % (frequency or 1) == 0) for layer in range(layers)]


def _has_effect(name: str, settings: Settings) -> bool:
    """Whether a setting changes anything in the model that the others describe."""
    if name == "rope_scaling_factor":
        return bool(settings["rope_scaling"])
    if name == "window_attn_skip_freq":
        return settings["window_size"] is not None
    latent = bool(settings["multi_latent_attention"])
    if name in _YARN_OF_LATENT_ATTENTION:
        return latent and settings["rope_type"] == "yarn"
    if name == "kv_channels":
        return not latent
    if name == "moe_router_pre_softmax":
        return bool(settings["num_moe_experts"]) and settings["moe_router_score_function"] == "softmax"
    if name.startswith(_YARN):
        return bool(settings["position_embedding_type"] == "yarn")
    if name.startswith(_EXPERTS):
        return bool(settings["num_moe_experts"])
    if name == "ffn_hidden_size":
        return not settings["num_moe_experts"] or 0 in settings["moe_layer_freq"]
    return True


def _differences(described: Settings, built: Settings) -> Iterator[str]:
    for name, field in FIELDS.items():
        theirs, own = described.get(name), built.get(name)
        if _unless_neutral(name, theirs) != _unless_neutral(name, own):
            place = f"model.{field}" if field else f"megatronArgs: {name.replace('_', '-')}"
            yield f"{name} is {theirs!r} there and {own!r} in the run ({place})"


def _unless_neutral(name: str, value: Any) -> Any:
    return None if not value or value == _NEUTRAL.get(name) else value
