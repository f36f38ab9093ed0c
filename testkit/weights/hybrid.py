"""Small hybrid models of state-space layers, attention, MLP and experts."""

from typing import Any

NEMOTRON_H: dict[str, Any] = {
    **{"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"head_dim": 16, "vocab_size": 256, "max_position_embeddings": 128},
    **{"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None},
    **{"hybrid_override_pattern": "M-M*M-", "chunk_size": 16, "ssm_state_size": 16, "n_groups": 2},
    **{"mamba_num_heads": 8, "mamba_head_dim": 16},
}
"""Arguments of transformers' configuration, with MLP as Nemotron-H and Nemotron Nano 2 have it."""
NEMOTRON_3 = {
    **NEMOTRON_H,
    **{"hybrid_override_pattern": "MEM*ME", "n_routed_experts": 4, "num_experts_per_tok": 2},
    **{"moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 32, "n_group": 1, "topk_group": 1},
    **{"routed_scaling_factor": 2.5},
}
"""With experts as Nemotron 3 has them."""
NEMOTRON_3_5_LIGHTNING = {
    **NEMOTRON_3,
    **{"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"},
}
"""With a block of attention and experts that predicts one more token."""
NEMOTRON_3_SUPER = {**NEMOTRON_3_5_LIGHTNING, "moe_latent_size": 32}
"""With latent experts too."""
HYBRID_OF_BRIDGE: dict[str, Any] = {
    **{"model.hybrid_layer_pattern": "M-M*M-", "model.num_layers": 6, "model.hidden_size": 64},
    **{"model.ffn_hidden_size": 128, "model.num_attention_heads": 4, "model.num_query_groups": 2},
    **{"model.kv_channels": 16, "model.mamba_num_heads": 8, "model.mamba_head_dim": 16},
    **{"model.mamba_state_dim": 16, "model.mamba_num_groups": 2},
}
"""NEMOTRON_H, for functions that have the architecture themselves."""
EXPERTS_OF_BRIDGE: dict[str, Any] = {
    **HYBRID_OF_BRIDGE,
    **{"model.hybrid_layer_pattern": "MEM*ME", "model.num_moe_experts": 4, "model.moe_router_topk": 2},
    **{"model.moe_ffn_hidden_size": 32, "model.moe_shared_expert_intermediate_size": 32},
}
"""NEMOTRON_3, for such functions."""
