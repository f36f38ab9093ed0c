"""Small models of gated delta nets and attention with a gate on its output."""

from pathlib import Path
from typing import Any

QWEN3_NEXT: dict[str, Any] = {
    **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "full_attention_interval": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16},
    **{"linear_value_head_dim": 8, "vocab_size": 256, "max_position_embeddings": 128},
    **{"moe_intermediate_size": 32, "shared_expert_intermediate_size": 48, "num_experts": 4},
    **{"num_experts_per_tok": 2, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None},
}
"""Arguments of transformers' configuration: every second layer has attention, all have experts."""
_EXPERTS = ("moe_intermediate_size", "shared_expert_intermediate_size", "num_experts", "num_experts_per_tok")
QWEN3_5_MOE = {name: value for name, value in QWEN3_NEXT.items() if name != "intermediate_size"}
QWEN3_5 = {name: value for name, value in QWEN3_NEXT.items() if name not in _EXPERTS}
"""Qwen3.5's text, with experts and without."""


def with_text(text: dict[str, Any]) -> dict[str, Any]:
    """Arguments of the configuration of a whole Qwen3.5, of which a function takes the text's part.

    It has a layer of multi-token prediction, as the published ones do.
    """
    return {"text_config": {**text, "mtp_num_hidden_layers": 1}, "tie_word_embeddings": False}


def write_prediction(file: Path) -> None:
    """Add a layer of multi-token prediction to a Qwen3-Next, under the names of Qwen's files."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(file)
    last, width = QWEN3_NEXT["num_hidden_layers"] - 1, QWEN3_NEXT["hidden_size"]
    generator = torch.Generator().manual_seed(2)

    def random(*shape: int) -> torch.Tensor:
        return (0.05 * torch.randn(*shape, generator=generator)).to(tensors["lm_head.weight"].dtype)

    prefix = f"model.layers.{last}."
    for name in [name for name in tensors if name.startswith(prefix)]:
        tensors[f"mtp.layers.0.{name.removeprefix(prefix)}"] = random(*tensors[name].shape)
    tensors["mtp.fc.weight"] = random(width, 2 * width)
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        tensors[f"mtp.{name}.weight"] = random(width)
    save_file(tensors, file, metadata={"format": "pt"})
