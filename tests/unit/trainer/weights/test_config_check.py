"""config.json has settings that Bridge drops: they are refused by name."""

import re
from pathlib import Path
from typing import Any

import pytest
from megatron_trainer.weights import config_check
from megatron_trainer.weights.conversion_error import ConversionError
from megatron_trainer.weights.huggingface_folder import HuggingFaceFolder

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

GEMMA4_ROPE = {
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}

QWEN35_VL: dict[str, Any] = {
    "text_config": {"rope_parameters": {"partial_rotary_factor": 0.25, "mrope_section": [3, 3, 2]}},
    "vision_config": {"hidden_act": "gelu_pytorch_tanh", "deepstack_visual_indexes": []},
}

MINIMAX_M3: dict[str, Any] = {
    "text_config": {"head_dim": 128, "rotary_dim": 64, "rope_parameters": {"partial_rotary_factor": 0.5}},
    "vision_config": {"hidden_act": "gelu"},
}


STEP: dict[str, Any] = {
    "rope_scaling": LLAMA3 | {"factor": 2.0, "high_freq_factor": 32.0},
    **{"zero_centered": True, "use_head_wise_attn_gate": True, "moe_router_activation": "sigmoid"},
    "yarn_only_types": ["full_attention"],
}


def folder(architecture: str, **config: Any) -> HuggingFaceFolder:
    reads_more = {"text_config", "thinker_config"} & config.keys()
    task = "ForConditionalGeneration" if reads_more else "ForCausalLM"
    return HuggingFaceFolder(Path("/data/model"), {"architectures": [f"{architecture}{task}"], **config}, {})


def ministral3(**settings: Any) -> dict[str, Any]:
    return {"text_config": {"model_type": "ministral3", "rope_parameters": {"rope_type": "yarn"}} | settings}


def layer(**attention: Any) -> dict[str, Any]:
    """A layer of Llama-Nemotron."""
    return {"attention": {"n_heads_in_group": 8} | attention, "ffn": {"ffn_mult": 2.625}}


@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        ("DeciLM", {"rope_scaling": LLAMA3, "block_configs": [layer(), layer(n_heads_in_group=8)]}),
        ("DeciLM", {"block_configs": [layer(), layer(no_op=True, n_heads_in_group=None)]}),
        ("DeciLM", {"block_configs": [layer() | {"parallel_blocks": None}]}),
        ("Step3p5", STEP),
        ("Step3p5", {"rope_parameters": {"full_attention": STEP["rope_scaling"], "sliding_attention": {}}}),
        ("Step3p7", {"text_config": STEP, "vision_config": {"use_ln_pre": True, "use_ln_post": False}}),
        ("Llama", {}),
        ("Llama", {"rope_scaling": None, "hidden_act": "silu"}),
        ("Llama", {"rope_scaling": LLAMA3}),
        ("Llama", {"rope_parameters": {**LLAMA3, "factor": 32.0, "rope_theta": 500000.0}}),
        ("Mistral", {"hidden_act": "silu", "sliding_window": 4096}),
        ("Qwen2", {"use_sliding_window": False, "sliding_window": 131072}),
        ("Qwen3", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
        ("GptOss", {}),
        ("DeepseekV3", {"rope_scaling": {"type": "yarn", "factor": 40}}),
        (
            "DeepseekV3",
            {"rope_scaling": {"type": "yarn", "factor": 40, "mscale": 0.7, "mscale_all_dim": 0.7}},
        ),
        ("DeepseekV3", {"n_group": 8, "topk_group": 8, "num_experts_per_tok": 8}),
        ("DeepseekV3", {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": True}),
        ("DeepseekV3", {"n_group": 8, "topk_group": 4, "num_experts_per_tok": 8}),
        ("DeepseekV3", {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 8}),
        ("DeepseekV2", {"n_group": 1, "topk_method": "greedy", "num_experts_per_tok": 6}),
        ("Mixtral", {"sliding_window": None, "hidden_act": "silu"}),
        ("Qwen2Moe", {"decoder_sparse_step": 1, "mlp_only_layers": []}),
        ("DeepseekV4", {"rope_scaling": {"type": "yarn", "factor": 16}, "scoring_func": "sqrtsoftplus"}),
        ("DeepseekV4", {"compress_rates": {"heavily_compressed_attention": 64}}),
        ("Mistral3", ministral3(rms_norm_eps=1e-5)),
        ("NemotronH", {"mlp_hidden_act": "relu2", "partial_rotary_factor": 1.0, "moe_latent_size": 1024}),
        ("FalconH1", {"mamba_norm_before_gate": False, "mamba_rms_norm": False, "key_multiplier": 0.5}),
        ("MiniMaxM2", {"rotary_dim": 64, "rope_parameters": {"partial_rotary_factor": 0.5}}),
        ("Qwen3VLMoe", {"text_config": {"mlp_only_layers": [], "decoder_sparse_step": 1}}),
        ("Gemma3", {"text_config": {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}}),
        ("Gemma3", {"text_config": {"sliding_window": 1024}, "mm_tokens_per_image": 256}),
        ("Gemma3", {"text_config": {"sliding_window": None}, "mm_tokens_per_image": None}),
        ("Gemma4", {"text_config": {"enable_moe_block": True, "rope_parameters": GEMMA4_ROPE}}),
        ("Gemma4", {"text_config": {"enable_moe_block": False, "rope_parameters": GEMMA4_ROPE}}),
        ("Glm4vMoe", {"text_config": {"partial_rotary_factor": 0.5, "n_group": 1}}),
        ("Qwen3Next", {"partial_rotary_factor": 0.25, "layer_types": ["linear_attention"] * 2}),
        ("Qwen3_5", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}}),
        ("Qwen3_5", QWEN35_VL),
        ("Qwen3_5Moe", QWEN35_VL),
        ("Exaone4_5_", {"text_config": {"sliding_window": 4096, "rope_parameters": LLAMA3}}),
        ("MiniMaxM3Sparse", MINIMAX_M3),
        ("MiniMaxM3Sparse", {"text_config": {"sparse_attention_config": {"sparse_topk_blocks": 32}}}),
    ],
)
def test_what_megatron_has_is_accepted(architecture: str, config: dict[str, Any]) -> None:
    config_check.require_all_taken(folder(architecture, **config))


@pytest.mark.parametrize(
    ("architecture", "config", "text"),
    [
        (
            "DeciLM",
            {"block_configs": [layer(), layer(replace_with_linear=True)]},
            "replace_with_linear True of attention of block_configs[1]",
        ),
        (
            "DeciLM",
            {"block_configs": [layer(), layer() | {"parallel_blocks": [layer()]}]},
            "parallel_blocks [{'attention': {'n_heads_in_group': 8}, 'ffn': {'ffn_mult': 2.625}}] of "
            "block_configs[1]",
        ),
        (
            "DeciLM",
            {"block_configs": [layer(), layer(n_heads_in_group=4)]},
            "n_heads_in_group 4, 8 in different layers",
        ),
        (
            "DeepseekV2",
            {"n_group": 8, "topk_group": 3, "num_experts_per_tok": 6, "topk_method": "group_limited_greedy"},
            "n_group 8, topk_group 3 and num_experts_per_tok 6 of topk_method 'group_limited_greedy', which "
            "takes groups by their best expert: Megatron adds the best 2",
        ),
        ("DeepseekV2", {"n_group": 2, "topk_method": "greedy"}, "which does not limit groups"),
        (
            "DeepseekV3",
            {"n_group": 4, "topk_group": 2, "num_experts_per_tok": 6},
            "which takes groups by their best two experts: Megatron adds the best 3",
        ),
        ("DeepseekV3", {"norm_topk_prob": False}, "norm_topk_prob False, which is True there"),
        ("DeepseekV3", {"rope_interleave": False}, "rope_interleave False, which is True there"),
        (
            "DeepseekV3",
            {"rope_scaling": {"type": "yarn", "factor": 40, "attention_factor": 1.2}},
            "attention_factor 1.2 of rope_type 'yarn', which is None there",
        ),
        (
            "DeepseekV3",
            {"rope_scaling": {"type": "yarn", "factor": 40, "mscale": 0.7}},
            "mscale 0.7 without mscale_all_dim",
        ),
        (
            "DeepseekV2",
            {"rope_scaling": {"type": "yarn", "factor": 40, "mscale_all_dim": 1.0}},
            "mscale_all_dim 1.0 without mscale",
        ),
        ("Gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention True, which is False"),
        ("Mixtral", {"sliding_window": 4096}, "sliding_window 4096, which is None there"),
        ("Llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic'"),
        ("Llama", {"rope_scaling": {**LLAMA3, "high_freq_factor": 2.0}}, "high_freq_factor 2.0"),
        ("Llama", {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 4096}}, "which is 8192"),
        ("Llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor other than 1"),
        ("Qwen2", {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_type 'yarn' (known: default)"),
        ("Qwen3", {"rope_scaling": LLAMA3}, "rope_type 'llama3' (known: default)"),
        ("Qwen3Moe", {"use_sliding_window": True}, "use_sliding_window True, which is False there"),
        ("Mistral", {"hidden_act": "gelu"}, "hidden_act 'gelu', which is 'silu' there"),
        ("GptOss", {"rope_parameters": {"rope_type": "yarn", "factor": 16.0}}, "factor 16.0"),
        ("ExaoneMoE", {"norm_topk_prob": False}, "norm_topk_prob False, which is True there"),
        ("NemotronH", {"mlp_hidden_act": "silu"}, "mlp_hidden_act 'silu', which is 'relu2' there"),
        ("NemotronH", {"conv_kernel": 3, "use_conv_bias": False}, "use_conv_bias False, which is True"),
        ("FalconH1", {"mamba_norm_before_gate": True}, "mamba_norm_before_gate True, which is False there"),
        ("MiniMaxM2", {"scoring_func": "softmax"}, "scoring_func 'softmax', which is 'sigmoid' there"),
        ("Mistral3", ministral3(model_type="mistral"), "model_type 'mistral', which is 'ministral3' there"),
        ("Mistral3", ministral3(rms_norm_eps=1e-6), "rms_norm_eps 1e-06, which is 1e-05 there"),
        ("Mistral3", ministral3(rope_parameters={"rope_type": "yarn", "factor": 8.0}), "factor 8.0"),
        (
            "Gemma3",
            {"text_config": {"sliding_window": 128}, "mm_tokens_per_image": 256},
            "mm_tokens_per_image 256, which is more than sliding_window 128",
        ),
        ("Gemma4", {"text_config": {"attention_k_eq_v": False}}, "attention_k_eq_v False, which is True"),
        (
            "Qwen3OmniMoe",
            {"thinker_config": {"text_config": {"norm_topk_prob": False}}},
            "norm_topk_prob False, which is True",
        ),
        (
            "Qwen3OmniMoe",
            {"thinker_config": {"text_config": {"rope_parameters": {"rope_theta": 1e4}}}},
            "rope_theta 10000.0 of rope_type 'default', which is 1000000.0 there",
        ),
        ("Glm4vMoe", {"text_config": {"n_group": 2}}, "n_group 2, which is 1 there"),
        (
            "Glm4vMoe",
            {"text_config": {}, "tie_word_embeddings": True},
            "tie_word_embeddings True, which is False there",
        ),
        (
            "Glm4vMoe",
            {"text_config": {"rope_parameters": {"rope_type": "default", "mrope_section": [16, 24, 24]}}},
            "mrope_section [16, 24, 24] of rope_type 'default', which is [8, 12, 12] there",
        ),
        ("Qwen3VLMoe", {"text_config": {"mlp_only_layers": [0]}}, "mlp_only_layers [0], which is [] there"),
        ("Qwen3Next", {"norm_topk_prob": False}, "norm_topk_prob False, which is True there"),
        ("Qwen3Next", {"decoder_sparse_step": 2}, "decoder_sparse_step 2, which is 1 there"),
        ("Qwen3_5Moe", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_type 'yarn'"),
        (
            "Qwen3_5",
            {"text_config": {}, "vision_config": {"deepstack_visual_indexes": [8]}},
            "deepstack_visual_indexes [8] of vision_config, which is [] there",
        ),
        (
            "Qwen3_5Moe",
            {"text_config": {}, "vision_config": {"deepstack_visual_indexes": [8]}},
            "deepstack_visual_indexes [8] of vision_config, which is [] there",
        ),
        (
            "Qwen3_5Moe",
            {"text_config": {"attention_bias": True}},
            "attention_bias True, which is False there",
        ),
        (
            "Qwen3VL",
            {"text_config": {}, "vision_config": {"hidden_act": "silu"}},
            "hidden_act 'silu' of vision_config, which is 'gelu_pytorch_tanh' there",
        ),
        (
            "Qwen3VL",
            {"text_config": {"rope_parameters": {"rope_type": "default", "mrope_interleaved": False}}},
            "mrope_interleaved False of rope_type 'default', which is True there",
        ),
        (
            "Step3p5",
            {"yarn_only_types": ["full_attention", "sliding_attention"]},
            "yarn_only_types ['full_attention', 'sliding_attention'], which is ['full_attention'] there",
        ),
        ("Step3p5", {"moe_router_activation": "softmax"}, "moe_router_activation 'softmax'"),
        ("Step3p5", {"rope_scaling": {"rope_type": "yarn"}}, "rope_type 'yarn' (known: default, llama3)"),
        (
            "Step3p7",
            {"text_config": {}, "vision_config": {"use_cls_token": True}},
            "use_cls_token True of vision_config, which is False there",
        ),
        ("Exaone4_5_", {"text_config": {"sliding_window": None}}, "sliding_window None"),
        (
            "Exaone4_5_",
            {"text_config": {}, "vision_config": {"window_size": 224}},
            "window_size 224 of vision_config, which is 112 there",
        ),
        (
            "MiniMaxM3Sparse",
            {"text_config": {"index_topk_blocks": 8}},
            "index_topk_blocks 8 of index_block_size 128, fewer tokens than 2048",
        ),
        (
            "MiniMaxM3Sparse",
            {"text_config": {"sparse_attention_config": {"sparse_block_size": 64}}},
            "index_topk_blocks 16 of index_block_size 64, fewer tokens than 2048",
        ),
        (
            "MiniMaxM3Sparse",
            {"text_config": {"rotary_dim": 32, "partial_rotary_factor": 0.5}},
            "rotary_dim 32 and partial_rotary_factor 0.5 of head_dim 128",
        ),
        ("DeepseekV4", {"scoring_func": "sigmoid"}, "scoring_func 'sigmoid', which is 'sqrtsoftplus' there"),
        (
            "DeepseekV4",
            {"compress_rates": {"compressed_sparse_attention": 8}},
            "of which the first alone is 4 there",
        ),
        ("DeepseekV4", {"rope_parameters": {"main": {"rope_type": "yarn"}}}, "rope_type 'yarn' of main"),
    ],
)
def test_what_megatron_would_not_have_is_named(architecture: str, config: dict[str, Any], text: str) -> None:
    with pytest.raises(ConversionError) as refused:
        config_check.require_all_taken(folder(architecture, **config))
    assert text in str(refused.value)
    assert "it cannot be converted" in str(refused.value)


def nemotron(**settings: Any) -> HuggingFaceFolder:
    parts = {"llm_config": {"layer_norm_epsilon": 1e-5}, "vision_config": {"patch_size": 16}}
    config = {"architectures": ["NemotronH_Nano_Omni_Reasoning_V3"], "ps_version": "v2", **parts, **settings}
    return HuggingFaceFolder(Path("/data/model"), config, {})


def test_the_published_towers_of_nemotrons_are_accepted() -> None:
    tower = {"args": {"model": "vit_huge_patch16_224"}, "patch_size": 16, "max_resolution": 2048}
    config_check.require_all_taken(nemotron(vision_config=tower, sound_config={"subsampling_factor": 8}))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"vision_config": {"args": {"model": "vit_large_patch16_224"}}}, "'vit_large_patch16_224'"),
        ({"vision_config": {"patch_size": 14}}, "patch_size 14 of vision_config, which is 16 there"),
        ({"llm_config": {"num_nextn_predict_layers": 1}}, "num_nextn_predict_layers 1, which is 0 there"),
        ({"downsample_ratio": 1.0}, "downsample_ratio 1.0, which is 0.5 there"),
        ({"sound_config": {"scale_input": True}}, "scale_input True of sound_config, which is False there"),
    ],
)
def test_other_towers_of_nemotrons_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConversionError, match=re.escape(text)):
        config_check.require_all_taken(nemotron(**settings))


@pytest.mark.parametrize("config", [{}, {"first_k_dense_replace": None}, {"mlp_layer_types": ["dense"]}])
def test_a_setting_without_which_bridge_cannot_build_hy3_is_named(config: dict[str, Any]) -> None:
    """As transformers writes it: its class has `mlp_layer_types` instead."""
    with pytest.raises(ConversionError) as error:
        config_check.require_all_taken(folder("HYV3", **config))
    assert str(error.value) == (
        "/data/model/config.json has no first_k_dense_replace, which Megatron-Bridge reads; add it: the "
        "number of first layers, which have no experts"
    )
    config_check.require_all_taken(folder("HYV3", first_k_dense_replace=1))
