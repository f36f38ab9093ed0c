"""Sizes of small diffusion models, and of the latents and texts that they take."""

from megatron_contract.bridge_run import Value

CHANNELS, TEXT_CHANNELS, POOLED = 16, 32, 16
SMALL: dict[str, dict[str, Value]] = {
    "wan2.1": {
        **{"model.num_layers": 2, "model.hidden_size": 96, "model.ffn_hidden_size": 128},
        **{"model.num_attention_heads": 4, "model.crossattn_emb_size": 96, "model.text_dim": TEXT_CHANNELS},
        "dataset.latents_shape": [CHANNELS, 2, 4, 8],
    },
    "flux1": {
        **{"model.num_joint_layers": 1, "model.num_single_layers": 2, "model.hidden_size": 96},
        **{"model.ffn_hidden_size": 128, "model.num_attention_heads": 4, "model.num_query_groups": 4},
        **{"model.kv_channels": 24, "model.context_dim": TEXT_CHANNELS, "model.vec_in_dim": POOLED},
        **{"model.axes_dims_rope": [8, 8, 8], "dataset.pooled_channels": POOLED},
        "dataset.latents_shape": [CHANNELS, 4, 6],
    },
}
"""Family -> sizes in place of a function's own; a rank of 96 elements has heads that rotations can split."""
TEXT: dict[str, Value] = {"dataset.text_length": 8, "dataset.text_channels": TEXT_CHANNELS}
