"""The model of a Megatron-Bridge function that leaves it to the recipe: `spec.model` in Bridge's names."""

from collections.abc import Iterator
from typing import Final

from megatron_contract.bridge_run import Value

from megatron_operator.api.errors import FieldError
from megatron_operator.api.model import ModelSpec

_SAME: Final = {
    "num_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "num_query_groups": "num_query_groups",
    "kv_channels": "kv_channels",
    "position_embedding_type": "position_embedding_type",
    "rotary_base": "rotary_base",
    "rotary_percent": "rotary_percent",
    "use_rope_scaling": "rope_scaling",
    "rope_scaling_factor": "rope_scaling_factor",
    "normalization": "normalization",
    "norm_epsilon": "layernorm_epsilon",
    "add_qkv_bias": "add_qkv_bias",
    "qk_layernorm": "qk_layernorm",
    "attention_dropout": "attention_dropout",
    "hidden_dropout": "hidden_dropout",
    "init_method_std": "init_method_std",
}
"""Field of `spec.model` -> field of Bridge's GPTModelProvider with the same value."""
_NEGATED: Final = {
    "disable_bias_linear": "add_bias_linear",
    "untie_embeddings_and_output_weights": "share_embeddings_and_output_weights",
}
"""Field of `spec.model` -> field of GPTModelProvider with the opposite value."""
_OTHERWISE: Final = frozenset(
    {"ffn_hidden_size", "vocab_size", "make_vocab_size_divisible_by", "swiglu", "squared_relu"}
)
_POSITIONS: Final = ("learned_absolute", "rope", "none")


def refused_settings(model: ModelSpec) -> Iterator[FieldError]:
    """Errors of settings that a plain GPT of Megatron-Bridge does not get."""
    passed = _SAME.keys() | _NEGATED.keys() | _OTHERWISE
    for name in sorted(model.model_fields_set - passed):
        if getattr(model, name) is None:
            continue
        field = f"spec.model.{ModelSpec.model_fields[name].alias}"
        if name == "max_position_embeddings":
            message = (
                "has no effect: Megatron-Bridge gives the model as many positions as a sample has tokens"
            )
            yield FieldError(field, message, "set training.seqLength alone")
        else:
            message = "is not passed to Megatron-Bridge, whose function builds a plain, dense GPT"
            yield FieldError(field, message, "leave it out, or choose a recipe of engine megatron")
    if (positions := model.position_embedding_type) not in (None, *_POSITIONS):
        message = f"{positions} is not passed to Megatron-Bridge"
        yield FieldError("spec.model.positionEmbeddingType", message, f"set one of {', '.join(_POSITIONS)}")


def overrides(model: ModelSpec, ffn: int, vocabulary: int) -> Iterator[tuple[str, Value]]:
    """The model by paths in Bridge's ConfigContainer.

    `ffn`: width of the feed-forward layers. `vocabulary`: entries of the embedding, padded, which Bridge
    otherwise takes from the tokenizer.
    """
    for name, field in _SAME.items():
        if (value := getattr(model, name)) is not None:
            yield f"model.{field}", value
    for name, field in _NEGATED.items():
        if (value := getattr(model, name)) is not None:
            yield f"model.{field}", not value
    yield "model.ffn_hidden_size", ffn
    yield "model.vocab_size", vocabulary
    yield "model.gated_linear_unit", bool(model.swiglu)
    activation = "silu" if model.swiglu else "squared_relu" if model.squared_relu else "gelu"
    yield "model.activation_func", activation
