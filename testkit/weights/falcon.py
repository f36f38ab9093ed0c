"""A small Falcon-H1 for transformers' configuration."""

from typing import Any

FALCON_H1: dict[str, Any] = {
    **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 256},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128},
    **{"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_ssm": 128, "mamba_d_state": 16, "mamba_n_groups": 2},
    **{"mamba_chunk_size": 16, "mamba_rms_norm": True, "mamba_norm_before_gate": False},
    **{"embedding_multiplier": 1.5, "lm_head_multiplier": 0.5, "key_multiplier": 0.7},
    **{"attention_in_multiplier": 1.1, "attention_out_multiplier": 0.9},
    **{"ssm_in_multiplier": 1.2, "ssm_out_multiplier": 0.8},
    **{"mlp_multipliers": [0.9, 1.3], "ssm_multipliers": [0.5, 0.6, 0.7, 0.8, 0.9]},
    **{"rope_theta": 1e11, "tie_word_embeddings": False},
    **{"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None},
}
"""Two layers with two groups of states, and multipliers that are all other than 1."""
