"""Small models of gated delta nets and attention with a gate on its output."""

import re
from collections.abc import Sequence
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


def write_prediction(file: Path, text: str = "model.") -> None:
    """Add a layer of multi-token prediction to a model, under the names of Qwen's files.

    Its shapes are those of the last layer, which has attention. `text`: what names of the language model's
    tensors begin with.
    """
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(file)
    found = (re.match(rf"{re.escape(text)}layers\.(\d+)\.", name) for name in tensors)
    last = max(int(match[1]) for match in found if match)
    generator = torch.Generator().manual_seed(2)
    embedding = tensors[f"{text}embed_tokens.weight"]
    width = embedding.shape[1]

    def random(*shape: int) -> torch.Tensor:
        return (0.05 * torch.randn(*shape, generator=generator)).to(embedding.dtype)

    prefix = f"{text}layers.{last}."
    for name in [name for name in tensors if name.startswith(prefix)]:
        for leaf, shape in _unpacked(name.removeprefix(prefix), tensors[name].shape).items():
            tensors[f"mtp.layers.0.{leaf}"] = random(*shape)
    tensors["mtp.fc.weight"] = random(width, 2 * width)
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        tensors[f"mtp.{name}.weight"] = random(width)
    save_file(tensors, file, metadata={"format": "pt"})


def _unpacked(name: str, shape: Sequence[int]) -> dict[str, Sequence[int]]:
    """Names and shapes of a tensor in a layer of prediction, where experts have tensors of their own."""
    experts, packed, leaf = name.partition("mlp.experts.")
    if leaf == "down_proj":
        return {f"{experts}{packed}{index}.{leaf}.weight": shape[1:] for index in range(shape[0])}
    if leaf == "gate_up_proj":
        half = (shape[1] // 2, *shape[2:])
        names = [f"{index}.{half_name}_proj" for index in range(shape[0]) for half_name in ("gate", "up")]
        return {f"{experts}{packed}{each}.weight": half for each in names}
    return {name: shape}
