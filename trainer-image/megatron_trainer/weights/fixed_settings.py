"""Values that the model has which Bridge builds of an architecture, whatever its config.json has."""

from collections.abc import Mapping
from typing import Any, Final

Settings = Mapping[str, Any]

_LLAMA: Final[Settings] = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_GPT_OSS: Final[Settings] = {
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
}
_GEMMA: Final[Settings] = {
    **{"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False},
    **{"use_bidirectional_attention": False, "tie_word_embeddings": True},
}
_GEMMA3: Final[Settings] = {
    **_GEMMA,
    "sliding_window_pattern": 6,
    "layer_types": [*["sliding_attention"] * 5, "full_attention"],
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}
_GEMMA4: Final[Settings] = {
    **{"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False, "tie_word_embeddings": True},
    **{"use_bidirectional_attention": "vision", "attention_k_eq_v": True},
    **{"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "use_double_wide_mlp": False},
    "layer_types": _GEMMA3["layer_types"],
}
_GLM: Final[Settings] = {"mrope_section": [8, 12, 12]}
_QWEN_VL: Final[Settings] = {"mrope_section": [16, 24, 24]}
_QWEN3_VL: Final[Settings] = {"mrope_interleaved": True}
_QWEN35_TOWER: Final[Settings] = {"hidden_act": "gelu_pytorch_tanh", "deepstack_visual_indexes": []}
_NEMOTRON_H: Final[Settings] = {
    **{"mlp_hidden_act": "relu2", "mamba_hidden_act": "silu", "use_conv_bias": True, "conv_kernel": 4},
    **{"use_bias": False, "mlp_bias": False, "attention_bias": False, "norm_topk_prob": True},
}
_NEMOTRON_OF_MEDIA: Final[Settings] = {
    # The norms of projectors have that of the text.
    **{**_NEMOTRON_H, "num_nextn_predict_layers": 0, "layer_norm_epsilon": 1e-5},
}
_RADIO: Final[Settings] = {
    **{"patch_size": 16, "max_resolution": 2048, "max_img_size": 2048, "layer_norm_eps": 1e-6},
    **{"hidden_act": "gelu", "use_swiglu_ffn": False, "qkv_bias": True},
}
LATENT_YARN: Final[Settings] = {"attention_factor": None, "truncate": True}
_MINISTRAL3: Final[Settings] = {
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
POSITIONS: Final[Mapping[str, Mapping[str, Settings]]] = {
    "LlamaForCausalLM": {"default": {}, "llama3": _LLAMA},
    "DeciLMForCausalLM": {"default": {}, "llama3": _LLAMA},
    "GptOssForCausalLM": {"yarn": _GPT_OSS},
    "DeepseekV2ForCausalLM": {"default": {}, "yarn": LATENT_YARN},
    "DeepseekV3ForCausalLM": {"default": {}, "yarn": LATENT_YARN},
    "DeepseekV4ForCausalLM": {"default": {}, "yarn": {"attention_factor": 1.0, "truncate": True}},
    "Exaone4ForCausalLM": {"default": {}, "llama3": _LLAMA},
    "Qwen2_5_VLForConditionalGeneration": {"default": _QWEN_VL, "mrope": _QWEN_VL},
    "Qwen3VLForConditionalGeneration": {"default": _QWEN3_VL},
    "Qwen3VLMoeForConditionalGeneration": {"default": _QWEN3_VL},
    "Qwen3_5ForConditionalGeneration": {"default": _QWEN3_VL},
    "Qwen3_5MoeForConditionalGeneration": {"default": _QWEN3_VL},
    "Qwen3OmniMoeForConditionalGeneration": {"default": {**_QWEN3_VL, "rope_theta": 1000000.0}},
    "Mistral3ForConditionalGeneration": {"yarn": _MINISTRAL3},
    "Gemma3ForConditionalGeneration": {"default": {}, "linear": {}},
    "Gemma4ForConditionalGeneration": {"default": {}, "proportional": {}},
    "Glm4vMoeForConditionalGeneration": {"default": _GLM},
    "Exaone4_5_ForConditionalGeneration": {"default": {}, "llama3": _LLAMA},
    "MiniMaxM3SparseForConditionalGeneration": {"default": {}},
    "KimiK25ForConditionalGeneration": {"default": {}, "yarn": LATENT_YARN},
    "Step3p5ForCausalLM": {"default": {}, "llama3": {}},
    "Step3p7ForConditionalGeneration": {"default": {}, "llama3": {}},
}
"""Architecture -> `rope_type` that Megatron has -> values that are fixed there; others: `default` only."""
_STEP: Final[Settings] = {
    **{"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False},
    **{"zero_centered": True, "use_qk_norm": True, "use_head_wise_attn_gate": True, "gating": True},
    **{"moe_router_activation": "sigmoid", "use_moe_router_bias": True, "norm_expert_weight": True},
    **{"yarn_only_types": ["full_attention"], "use_bidirectional_attention": False, "sink": False},
}
FIXED: Final[Mapping[str, Settings]] = {
    "DeciLMForCausalLM": {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
    "DeepseekV3ForCausalLM": {
        **{"hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False},
        **{"norm_topk_prob": True, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
        "rope_interleave": True,
    },
    "DeepseekV4ForCausalLM": {
        **{"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False},
        **{"scoring_func": "sqrtsoftplus", "norm_topk_prob": True, "num_key_value_heads": 1},
    },
    "MistralForCausalLM": {"hidden_act": "silu"},
    "MixtralForCausalLM": {"hidden_act": "silu", "sliding_window": None},
    "Qwen2MoeForCausalLM": {
        **{"hidden_act": "silu", "use_sliding_window": False, "qkv_bias": True},
        **{"decoder_sparse_step": 1, "mlp_only_layers": []},
    },
    "NemotronForCausalLM": {"hidden_act": "relu2", "attention_bias": False, "mlp_bias": False},
    "MiMoForCausalLM": {"hidden_act": "silu", "use_sliding_window": False, "attention_bias": True},
    "HYV3ForCausalLM": {
        **{"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "qk_norm": True},
        **{"route_norm": True, "moe_router_use_sigmoid": True, "moe_router_enable_expert_bias": True},
    },
    "Glm4MoeLiteForCausalLM": {
        **{"hidden_act": "silu", "norm_topk_prob": True, "attention_bias": False},
        **{"tie_word_embeddings": False, "rope_interleave": True},
    },
    "Qwen2ForCausalLM": {"use_sliding_window": False},
    "Qwen3ForCausalLM": {"use_sliding_window": False},
    "Qwen3MoeForCausalLM": {"use_sliding_window": False},
    "Qwen3NextForCausalLM": {
        **{"hidden_act": "silu", "attention_bias": False, "norm_topk_prob": True},
        **{"decoder_sparse_step": 1, "mlp_only_layers": []},
    },
    "Qwen3_5ForCausalLM": {"hidden_act": "silu", "attention_bias": False},
    "Qwen3_5MoeForCausalLM": {"hidden_act": "silu", "attention_bias": False},
    "GptOssForCausalLM": {"hidden_act": "silu", "swiglu_limit": 7.0},
    "GemmaForCausalLM": {
        **{"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"},
        **{"attention_bias": False, "tie_word_embeddings": True, "use_bidirectional_attention": False},
    },
    "Gemma2ForCausalLM": {**_GEMMA, "layer_types": ["sliding_attention", "full_attention"]},
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": _GEMMA3,
    "Gemma4ForConditionalGeneration": _GEMMA4,
    "Glm4MoeForCausalLM": {"hidden_act": "silu", "norm_topk_prob": True},
    "GlmMoeDsaForCausalLM": {
        **{"hidden_act": "silu", "norm_topk_prob": True, "attention_bias": False, "mlp_bias": False},
        **{"tie_word_embeddings": False, "indexer_rope_interleave": True},
    },
    "Glm4vMoeForConditionalGeneration": {
        **{"hidden_act": "silu", "norm_topk_prob": True, "n_group": 1, "topk_group": 1},
        **{"n_shared_experts": 1, "tie_word_embeddings": False},
    },
    "Exaone4ForCausalLM": {
        **{"hidden_act": "silu", "tie_word_embeddings": True, "attention_bias": False},
        **{"sliding_window": None, "layer_types": ["full_attention"]},
    },
    "Exaone4_5_ForConditionalGeneration": {"hidden_act": "silu", "tie_word_embeddings": False},
    "MiniMaxM3SparseForConditionalGeneration": {
        **{"swiglu_alpha": 1.702, "scoring_func": "sigmoid", "use_routing_bias": True},
        **{"use_gemma_norm": True, "use_qk_norm": True, "tie_word_embeddings": False},
    },
    "KimiK25ForConditionalGeneration": {
        **{"hidden_act": "silu", "norm_topk_prob": True, "attention_bias": False},
        **{"scoring_func": "sigmoid", "tie_word_embeddings": False},
    },
    "ExaoneMoEForCausalLM": {"hidden_act": "silu", "norm_topk_prob": True, "attention_bias": False},
    "FalconH1ForCausalLM": {
        **{"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "projectors_bias": False},
        **{"mamba_proj_bias": False, "mamba_conv_bias": True, "mamba_norm_before_gate": False},
    },
    "MiniMaxM2ForCausalLM": {
        **{"hidden_act": "silu", "tie_word_embeddings": False, "use_qk_norm": True},
        **{"scoring_func": "sigmoid", "use_routing_bias": True},
    },
    "NemotronHForCausalLM": _NEMOTRON_H,
    "NemotronH_Nano_VL_V2": _NEMOTRON_OF_MEDIA,
    "NemotronH_Nano_Omni_Reasoning_V3": _NEMOTRON_OF_MEDIA,
    "OlmoeForCausalLM": {"hidden_act": "silu", "norm_topk_prob": False, "clip_qkv": None},
    "Step3p5ForCausalLM": _STEP,
    "Step3p7ForConditionalGeneration": _STEP,
    "Qwen2_5_VLForConditionalGeneration": {"hidden_act": "silu", "use_sliding_window": False},
    "Qwen2AudioForConditionalGeneration": {"use_sliding_window": False},
    "Qwen3VLForConditionalGeneration": {"hidden_act": "silu"},
    "Qwen3_5ForConditionalGeneration": {"hidden_act": "silu", "attention_bias": False},
    "Qwen3_5MoeForConditionalGeneration": {"hidden_act": "silu", "attention_bias": False},
    "Mistral3ForConditionalGeneration": {
        **{"model_type": "ministral3", "hidden_act": "silu", "rms_norm_eps": 1e-5},
    },
    "Qwen3VLMoeForConditionalGeneration": {
        **{"hidden_act": "silu", "decoder_sparse_step": 1, "mlp_only_layers": []},
    },
    "Qwen3OmniMoeForConditionalGeneration": {
        **{"hidden_act": "silu", "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True},
        **{"use_sliding_window": False, "rope_theta": 1000000.0},
    },
}
"""Architecture -> settings with the only value that the model gets, whatever config.json has.

A list repeats over the layers.
"""
FIXED_VISION: Final[Mapping[str, Settings]] = {
    "Exaone4_5_ForConditionalGeneration": {
        **{"hidden_act": "silu", "patch_size": 14, "spatial_merge_size": 2, "window_size": 112},
    },
    "Gemma3ForConditionalGeneration": {"vision_use_head": False},
    "KimiK25ForConditionalGeneration": {
        **{"merge_type": "sd2_tpool", "mm_projector_type": "patchmerger", "projector_hidden_act": "gelu"},
        "pos_emb_type": "divided_fixed",
    },
    "MiniMaxM3SparseForConditionalGeneration": {"hidden_act": "gelu"},
    "Step3p7ForConditionalGeneration": {
        **{"use_cls_token": False, "use_ln_pre": True, "use_ln_post": False},
        **{"use_abs_posemb": True, "use_rope2d": True},
    },
    "NemotronH_Nano_VL_V2": _RADIO,
    "NemotronH_Nano_Omni_Reasoning_V3": _RADIO,
    "Qwen3VLForConditionalGeneration": {"hidden_act": "gelu_pytorch_tanh"},
    "Qwen3VLMoeForConditionalGeneration": {"hidden_act": "gelu_pytorch_tanh"},
    "Qwen3_5ForConditionalGeneration": _QWEN35_TOWER,
    "Qwen3_5MoeForConditionalGeneration": _QWEN35_TOWER,
}
"""The same of `vision_config`."""
SELECTED: Final[Mapping[str, int]] = {"MiniMaxM3SparseForConditionalGeneration": 2048}
"""Architecture -> tokens of a sequence in which each query attends to all before it, at least."""
PARTLY_ROTATED: Final = frozenset(
    {
        *("Glm4MoeForCausalLM", "Glm4vMoeForConditionalGeneration", "NemotronForCausalLM"),
        *("Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"),
        *("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"),
        *("MiniMaxM2ForCausalLM", "MiniMaxM3SparseForConditionalGeneration"),
        *("Step3p5ForCausalLM", "Step3p7ForConditionalGeneration", "DeepseekV4ForCausalLM"),
    }
)
"""Architectures whose `partial_rotary_factor` the model gets."""
NOT_BUILT: Final = (
    *("replace_with_linear", "sparsify", "moe", "window_length", "num_sink_tokens"),
    *("use_prefill_window_in_sink_attention", "unshifted_sink"),
)
"""Settings of a part of a layer of Llama-Nemotron that must be unset."""
