"""Models that Megatron-Bridge imports have as many parameters in the catalog as transformers gives them.

Bridge copies weights between the two without adding any; a vision or audio tower it takes over as it is.
"""

from typing import Any

import pytest
import transformers
from megatron_operator.catalog.architecture import Architecture
from megatron_operator.planner.estimate.parameters import allocated_parameters

from tests.bridge.sizes import CATALOG, architecture, built, counted, experts, of, qwen_vision, shape_of, text


@pytest.mark.parametrize("name", ["ministral3-3b", "ministral3-8b", "ministral3-14b"])
def test_ministral_3(name: str) -> None:
    model = architecture(name)
    config = transformers.Mistral3Config(
        text_config=transformers.MistralConfig(**text(model)),
        tie_word_embeddings=not model.untie_embeddings_and_output_weights,
    )
    assert counted(model) == of("Mistral3ForConditionalGeneration", config)


@pytest.mark.parametrize("name", ["qwen2.5-vl-3b", "qwen2.5-vl-7b", "qwen2.5-vl-32b", "qwen2.5-vl-72b"])
def test_qwen_2_5_with_vision(name: str) -> None:
    model = architecture(name)
    vision = qwen_vision(model)
    tied = not model.untie_embeddings_and_output_weights
    config = transformers.Qwen2_5_VLConfig(
        text_config=text(model), vision_config=vision, tie_word_embeddings=tied
    )
    assert counted(model) == of("Qwen2_5_VLForConditionalGeneration", config)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("qwen3-vl-8b", "Qwen3VL"),
        ("qwen3-vl-30b-a3b", "Qwen3VLMoe"),
        ("qwen3-vl-235b-a22b", "Qwen3VLMoe"),
    ],
)
def test_qwen_3_with_vision(name: str, kind: str) -> None:
    model = architecture(name)
    vision = qwen_vision(model) | {"deepstack_visual_indexes": [8, 16, 24]}
    sizes = text(model, **(experts(model) if model.num_experts else {}))
    config = getattr(transformers, f"{kind}Config")(
        text_config=sizes,
        vision_config=vision,
        tie_word_embeddings=not model.untie_embeddings_and_output_weights,
    )
    assert counted(model) == of(f"{kind}ForConditionalGeneration", config)


def linear(model: Architecture) -> dict[str, Any]:
    """Sizes of gated delta nets."""
    return {
        "linear_num_key_heads": model.linear_num_key_heads,
        "linear_num_value_heads": model.linear_num_value_heads,
        "linear_key_head_dim": model.linear_key_head_dim,
        "linear_value_head_dim": model.linear_value_head_dim,
    }


QWEN_3_5 = [name for name in CATALOG.names() if name.startswith("qwen3.5-vl") and name.endswith("-sft")]


@pytest.mark.parametrize("name", QWEN_3_5)
def test_qwen_3_5_with_vision(name: str) -> None:
    model = architecture(name)
    kind, sizes = "Qwen3_5", text(model, **linear(model))
    if model.num_experts:
        kind = "Qwen3_5Moe"
        sizes |= experts(model)
        sizes["shared_expert_intermediate_size"] = model.moe_shared_expert_intermediate_size
    config = getattr(transformers, f"{kind}Config")(
        text_config=sizes,
        vision_config=qwen_vision(model),
        tie_word_embeddings=not model.untie_embeddings_and_output_weights,
    )
    assert counted(model) == of(f"{kind}ForConditionalGeneration", config)


def test_qwen_3_next() -> None:
    model = architecture("qwen3-next-80b-a3b")
    sizes = text(model, **linear(model), **experts(model))
    sizes["shared_expert_intermediate_size"] = model.moe_shared_expert_intermediate_size
    assert counted(model) == of("Qwen3NextForCausalLM", transformers.Qwen3NextConfig(**sizes))


def test_qwen_2_with_sound() -> None:
    model = architecture("qwen2-audio-7b")
    config = transformers.Qwen2AudioConfig(text_config=text(model) | {"model_type": "qwen2"})
    assert counted(model) == of("Qwen2AudioForConditionalGeneration", config)


def test_qwen_3_omni() -> None:
    """The part that Bridge builds (`Qwen3OmniModel`): what understands, with both encoders."""
    model = architecture("qwen3-omni-30b-a3b-sft")
    sound = model.sound_tower
    assert sound is not None
    config = transformers.Qwen3OmniMoeThinkerConfig(
        text_config=text(model, **experts(model)),
        vision_config=qwen_vision(model) | {"deepstack_visual_indexes": [8, 16, 24]},
        audio_config={
            "encoder_layers": sound.layers,
            "d_model": sound.hidden_size,
            "encoder_ffn_dim": sound.ffn_hidden_size,
            "encoder_attention_heads": sound.num_attention_heads,
            "output_dim": model.hidden_size,
        },
    )
    thinker = transformers.Qwen3OmniMoeThinkerForConditionalGeneration
    assert counted(model) == built(lambda: thinker._from_config(config))


def test_exaone_4() -> None:
    model = architecture("exaone4-1.2b")
    assert counted(model) == of("Exaone4ForCausalLM", transformers.Exaone4Config(**text(model)))


def test_exaone_4_5_with_vision() -> None:
    model = architecture("exaone4.5-vl-33b-sft")
    tower = model.tower
    assert tower is not None
    vision = qwen_vision(model) | {"num_key_value_heads": tower.num_query_groups}
    config = transformers.Exaone4_5_Config(
        text_config=text(model) | {"model_type": "exaone4"}, vision_config=vision, tie_word_embeddings=False
    )
    assert counted(model) == of("Exaone4_5_ForConditionalGeneration", config)


def test_kimi_k2_5_with_vision() -> None:
    model = architecture("kimi-k2.5-vl-sft")
    sizes = text(model, n_routed_experts=model.num_experts, n_shared_experts=1, first_k_dense_replace=1)
    sizes |= experts(model) | {"num_key_value_heads": model.num_attention_heads}
    sizes |= {"q_lora_rank": model.q_lora_rank, "kv_lora_rank": model.kv_lora_rank}
    # Their config derives the width of a head from its parts.
    del sizes["head_dim"]
    config = transformers.Kimi_K25Config(
        text_config=sizes | {"model_type": "deepseek_v3"}, tie_word_embeddings=False
    )
    assert counted(model) == of("Kimi_K25ForConditionalGeneration", config)


def test_k_exaone() -> None:
    model = architecture("k-exaone-236b-a23b")
    sparse = ["sparse"] * (model.num_layers or 0)
    layers = {"first_k_dense_replace": 1, "mlp_layer_types": ["dense", *sparse[1:]]}
    sizes = text(model, **experts(model), num_shared_experts=1)
    config = transformers.ExaoneMoeConfig(**sizes, **layers)
    assert counted(model) == of("ExaoneMoeForCausalLM", config)


def test_k_exaone_2() -> None:
    """Megatron-Bridge's model card counts 1,498,715,008,512 bytes with the prediction, 2 for each parameter
    and 4 for each expert bias of 76 layers."""
    shape = shape_of(architecture("k-exaone2-750b-a37b"))
    assert 2 * allocated_parameters(shape, shape.vocab) + 4 * 76 * 256 == 1_498_715_008_512


def test_glm_4_5_with_vision() -> None:
    model = architecture("glm4.5v-106b")
    sizes = text(model, n_routed_experts=model.num_experts, **experts(model))
    config = transformers.Glm4vMoeConfig(
        text_config=sizes | {"attention_bias": True}, tie_word_embeddings=False
    )
    assert counted(model) == of("Glm4vMoeForConditionalGeneration", config)


def test_minimax_m3() -> None:
    """With the first layers that the checkpoint has; transformers makes all of them sparse by default."""
    model = architecture("minimax-m3")
    dense = sum(not kind.is_moe for kind in shape_of(model).kinds)
    config = transformers.MiniMaxM3VLConfig()
    config.text_config.mlp_layer_types = ["dense"] * dense + ["sparse"] * (60 - dense)
    assert (config.text_config.num_hidden_layers, config.text_config.hidden_size) == (
        model.num_layers,
        model.hidden_size,
    )
    whole = built(lambda: transformers.AutoModelForImageTextToText.from_config(config))
    assert counted(model) == whole


DEEPSEEK_V4_PRO = {
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "n_routed_experts": 384,
    "moe_intermediate_size": 3072,
    "q_lora_rank": 1536,
    "o_groups": 16,
    "index_topk": 1024,
}
"""What the published config.json of DeepSeek-V4-Pro has otherwise than the defaults, which are Flash's."""


@pytest.mark.parametrize(
    ("name", "first", "sizes"), [("flash", [0, 0], {}), ("pro", [128, 128], DEEPSEEK_V4_PRO)]
)
def test_deepseek_v4(name: str, first: list[int], sizes: dict[str, int]) -> None:
    layers = sizes.get("num_hidden_layers", 43)
    config = transformers.DeepseekV4Config(compress_ratios=(first + [4, 128] * 30)[:layers], **sizes)
    assert counted(architecture(f"deepseek-v4-{name}")) == of("DeepseekV4ForCausalLM", config)


@pytest.mark.parametrize(
    ("name", "shared"), [("glm5.1", {}), ("glm5.2", {"index_topk_freq": 4, "index_skip_topk_offset": 3})]
)
def test_glm_5(name: str, shared: dict[str, int]) -> None:
    assert counted(architecture(name)) == of("GlmMoeDsaForCausalLM", transformers.GlmMoeDsaConfig(**shared))


def test_step_3_7() -> None:
    model = architecture("step3.7-flash")
    layers = (["full_attention"] + ["sliding_attention"] * 3) * 12
    sizes = {
        "vocab_size": 128896,
        "layer_types": layers[: model.num_layers],
        "attention_other_setting": {"num_attention_heads": 96},
    }
    whole = of("Step3p7ForConditionalGeneration", transformers.Step3p7Config(text_config=sizes))
    assert counted(model) == whole


def test_minimax_m2() -> None:
    """transformers' defaults are the published sizes."""
    model, config = architecture("minimax-m2"), transformers.MiniMaxM2Config()
    assert text(model).items() <= (config.to_dict() | {"intermediate_size": model.ffn_hidden_size}).items()
    assert counted(model) == of("MiniMaxM2ForCausalLM", config)


@pytest.mark.parametrize("name", [name for name in CATALOG.names() if name.startswith("falcon-h1-")])
def test_falcon_h1(name: str) -> None:
    model = architecture(name)
    heads, width = model.mamba_num_heads or 0, model.mamba_head_dim or 0
    mixer = {
        "mamba_n_heads": heads,
        "mamba_d_head": width,
        "mamba_d_ssm": heads * width,
        "mamba_d_state": model.mamba_state_dim,
        "mamba_n_groups": model.mamba_num_groups,
        "mamba_rms_norm": model.mamba_norm is not False,
    }
    assert counted(model) == of("FalconH1ForCausalLM", transformers.FalconH1Config(**text(model, **mixer)))
