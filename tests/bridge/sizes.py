"""Numbers of parameters: in the catalog, and of transformers' models that are made without memory."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from megatron_operator import catalog
from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.catalog.architecture import Architecture
from megatron_operator.planner.estimate.model_shape import ModelShape, model_shape
from megatron_operator.planner.estimate.parameters import parameters

CATALOG = catalog.load()


def architecture(name: str) -> Architecture:
    return CATALOG.get(name).model


def shape_of(model: Architecture) -> ModelShape:
    shape = model_shape(model, Diagnostics())
    assert shape is not None
    return shape


def counted(model: Architecture) -> int:
    shape = shape_of(model)
    return parameters(shape, shape.vocab)


def text(model: Architecture, **further: Any) -> dict[str, Any]:
    """Sizes of the language model by transformers' names."""
    return {
        "num_hidden_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_query_groups,
        "head_dim": model.kv_channels,
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": not model.untie_embeddings_and_output_weights,
        **further,
    }


def qwen_vision(model: Architecture) -> dict[str, Any]:
    """Sizes of the vision tower by transformers' names."""
    tower = model.tower
    assert tower is not None
    return {
        "depth": tower.layers,
        "hidden_size": tower.hidden_size,
        "intermediate_size": tower.ffn_hidden_size,
        "num_heads": tower.num_attention_heads,
        "out_hidden_size": model.hidden_size,
    }


def experts(model: Architecture) -> dict[str, Any]:
    return {
        "num_experts": model.num_experts,
        "num_experts_per_tok": model.moe_router_topk,
        "moe_intermediate_size": model.moe_ffn_hidden_size,
    }


def built(make: Callable[[], torch.nn.Module]) -> int:
    """Number of parameters of a model that is made without memory; tied ones count once."""
    with torch.device("meta"):
        model = make()
    tie = getattr(model, "tie_weights", None)
    if tie is not None:
        tie()
    return sum(parameter.numel() for parameter in model.parameters())


def of(kind: str, config: Any) -> int:
    return built(lambda: getattr(transformers, kind)._from_config(config))
