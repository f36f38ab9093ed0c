"""Gemma's models have as many parameters in the catalog as transformers gives them."""

from typing import Any

import pytest
import transformers
from megatron_operator.catalog.architecture import TowerSpec
from megatron_operator.planner.estimate.model_shape import heads_of

from tests.bridge.sizes import architecture, counted, experts, of, shape_of, text


@pytest.mark.parametrize("name", ["gemma2-2b", "gemma2-9b", "gemma2-27b"])
def test_gemma_2(name: str) -> None:
    model = architecture(name)
    assert counted(model) == of("Gemma2ForCausalLM", transformers.Gemma2Config(**text(model)))


def test_gemma_3() -> None:
    model = architecture("gemma3-1b")
    assert counted(model) == of("Gemma3ForCausalLM", transformers.Gemma3TextConfig(**text(model)))


@pytest.mark.parametrize("name", ["gemma3-vl-4b", "gemma3-vl-12b", "gemma3-vl-27b"])
def test_gemma_3_with_vision(name: str) -> None:
    """SigLIP of 896 x 896 pixels in patches of 14."""
    model = architecture(name)
    tower = model.tower
    assert tower is not None
    vision = {
        "num_hidden_layers": tower.layers,
        "hidden_size": tower.hidden_size,
        "intermediate_size": tower.ffn_hidden_size,
        "num_attention_heads": tower.num_attention_heads,
        "image_size": 896,
        "patch_size": 14,
        "vision_use_head": False,
    }
    config = transformers.Gemma3Config(text_config=text(model), vision_config=vision)
    assert counted(model) == of("Gemma3ForConditionalGeneration", config)


def test_gemma_4() -> None:
    """Megatron-Bridge has keys and values also in the last 18 layers, which attend to those of others."""
    model = architecture("gemma4-e4b")
    shared, shape = 18, shape_of(model)
    config = transformers.Gemma4TextConfig(**text(model), num_kv_shared_layers=shared)
    whole = of("Gemma4ForCausalLM", config)
    unused = 0
    for kind in shape.kinds[-shared:]:
        own = heads_of(shape, kind)
        unused += 2 * shape.hidden * own.groups * own.head_dim + own.head_dim
    assert counted(model) == whole + unused


def gemma_4_vision(tower: TowerSpec) -> dict[str, Any]:
    return {
        "num_hidden_layers": tower.layers,
        "hidden_size": tower.hidden_size,
        "intermediate_size": tower.ffn_hidden_size,
        "num_attention_heads": tower.num_attention_heads,
        "num_key_value_heads": tower.num_attention_heads,
        "head_dim": 72,
        "global_head_dim": 72,
        "standardize": True,
    }


def test_gemma_4_with_vision() -> None:
    """Megatron-Bridge has projections of values also in the layers whose keys are their values."""
    model = architecture("gemma4-vl-26b")
    tower, shape = model.tower, shape_of(model)
    assert tower is not None
    language = text(model, **experts(model)) | {
        "enable_moe_block": True,
        "top_k_experts": model.moe_router_topk,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 2,
        "hidden_size_per_layer_input": 0,
    }
    config = transformers.Gemma4Config(
        text_config=language, vision_config=gemma_4_vision(tower), audio_config=None
    )
    whole = of("Gemma4ForConditionalGeneration", config)
    full = [heads_of(shape, kind) for kind in shape.kinds[5::6]]
    values = sum(shape.hidden * own.groups * own.head_dim for own in full)
    assert counted(model) == whole + values


def test_gemma_4_31b_with_vision() -> None:
    """Megatron-Bridge has projections of values also in the layers whose keys are their values."""
    model = architecture("gemma4-vl-31b")
    tower, shape = model.tower, shape_of(model)
    assert tower is not None
    language = text(model) | {
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 4,
        "hidden_size_per_layer_input": 0,
    }
    config = transformers.Gemma4Config(
        text_config=language, vision_config=gemma_4_vision(tower), audio_config=None
    )
    whole = of("Gemma4ForConditionalGeneration", config)
    full = [heads_of(shape, kind) for kind in shape.kinds[5::6]]
    values = sum(shape.hidden * own.groups * own.head_dim for own in full)
    assert counted(model) == whole + values
