"""Sizes of a small Step-3.5, by the names of the published config.json."""

from typing import Any, Final

_FULL, _WINDOWED = "full_attention", "sliding_attention"

STEP: Final[dict[str, Any]] = {
    **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 5, "head_dim": 16},
    **{"num_attention_heads": 4, "num_attention_groups": 2, "vocab_size": 256, "sliding_window": 16},
    **{"max_position_embeddings": 128, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2},
    "layer_types": [_FULL, *[_WINDOWED] * 3, _FULL],
    "attention_other_setting": {
        **{"attention_type": _WINDOWED, "num_attention_heads": 6, "num_attention_groups": 2},
        "head_dim": 16,
    },
    "rope_theta": [5e6, 1e4, 1e4, 1e4, 5e6],
    "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0, 0.5],
    "rope_scaling": {
        **{"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 32.0},
        "original_max_position_embeddings": 64,
    },
    "yarn_only_types": [_FULL],
    **{"moe_layers_enum": "1,2,3,4", "moe_num_experts": 4, "moe_top_k": 2, "moe_intermediate_size": 32},
    **{"share_expert_dim": 32, "moe_router_scaling_factor": 3.0},
    # Close to 0, so that they bound what a small model computes.
    "swiglu_limits": [0.0, 0.0, 0.0, 0.02, 0.02],
    "swiglu_limits_shared": [0.0, 0.0, 0.0, 0.0, 0.03],
}
"""Five layers. The first and the last have no window, and other heads; all but the first have experts."""
PREDICTED: Final = 2
STEP_PREDICTING: Final[dict[str, Any]] = {
    **STEP,
    "num_nextn_predict_layers": PREDICTED,
    "layer_types": [*STEP["layer_types"], *[_WINDOWED] * PREDICTED],
    "rope_theta": [*STEP["rope_theta"], *[1e4] * PREDICTED],
    "partial_rotary_factors": [*STEP["partial_rotary_factors"], *[1.0] * PREDICTED],
    **{name: [*STEP[name], *[0.0] * PREDICTED] for name in ("swiglu_limits", "swiglu_limits_shared")},
}
"""The same with layers of multi-token prediction, which are dense and have a window."""
PUBLISHED: Final[dict[str, Any]] = {
    **{"model_type": "step3p5", "zero_centered": True, "use_qk_norm": True, "use_moe_router_bias": True},
    **{"use_head_wise_attn_gate": True, "moe_router_activation": "sigmoid", "need_fp32_gate": True},
    "tie_word_embeddings": False,
}
"""What config.json has besides."""
