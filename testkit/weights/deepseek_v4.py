"""Sizes of a small DeepSeek-V4, and its files by the names of the published weights.

transformers 5.23 writes other names than it reads: a prefix, and another name of the norm of keys.
"""

import re
from pathlib import Path
from typing import Any, Final

DEEPSEEK_V4: Final[dict[str, Any]] = {
    **{"hidden_size": 64, "moe_intermediate_size": 32, "num_hidden_layers": 5, "num_attention_heads": 4},
    **{"num_key_value_heads": 1, "head_dim": 32, "q_lora_rank": 48, "qk_rope_head_dim": 8, "vocab_size": 256},
    **{"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "num_hash_layers": 1},
    **{"compress_ratios": [0, 4, 128, 4, 0], "sliding_window": 8, "swiglu_limit": 0.05},
    **{"o_groups": 2, "o_lora_rank": 16, "index_n_heads": 4, "index_head_dim": 16, "index_topk": 3},
    **{"num_nextn_predict_layers": 0, "max_position_embeddings": 128, "bos_token_id": 0, "eos_token_id": 1},
    "rope_scaling": {
        **{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        **{"beta_fast": 32, "beta_slow": 1},
    },
}
"""A layer of each kind of attention. Windows, selections and limits are small enough to matter."""
SHORT_ENTRIES: Final[dict[str, Any]] = {**DEEPSEEK_V4, "compress_rate_hca": 8}
"""Entries of 8 tokens in place of 128, of which a short sequence has some. Bridge trains no such model."""


def fill(model: Any) -> None:
    """Draw what transformers sets to zero: positions in an entry, and the experts of tokens."""
    import torch

    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("position_bias"):
                tensor.normal_(generator=generator)
            elif name.endswith("tid2eid"):
                experts = torch.rand(len(tensor), model.config.n_routed_experts, generator=generator)
                tensor.copy_(experts.argsort(dim=-1)[:, : tensor.shape[1]])


def publish(file: Path) -> None:
    """Give the tensors of a file that transformers wrote their published names."""
    from safetensors.torch import load_file, save_file

    tensors = {_published(name.removeprefix("model.")): tensor for name, tensor in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})


def _published(name: str) -> str:
    for written, published in _NAMES.items():
        name = re.sub(written, published, name)
    return name


_NAMES: Final = {
    r"^embed_tokens\.": "embed.",
    r"^lm_head\.": "head.",
    r"^hc_head\.hc_": "hc_head_",
    r"\.attn\.norm\.": ".attn.kv_norm.",
}


def write_prediction(file: Path) -> None:
    """Add a random layer of multi-token prediction, a layer as the first without its table of experts."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors, generator = load_file(file), torch.Generator().manual_seed(2)
    norm = tensors["norm.weight"]
    like = {
        name.replace("layers.0.", "mtp.0."): tensor
        for name, tensor in tensors.items()
        if name.startswith("layers.0.") and not name.endswith("tid2eid")
    }
    like |= {f"mtp.0.{name}.weight": norm for name in ("enorm", "hnorm", "norm")}
    like |= {f"mtp.0.{name}.weight": norm.new_empty(len(norm), len(norm)) for name in ("e_proj", "h_proj")}
    like |= {f"mtp.0.{name}": tensors[name] for name in tensors if name.startswith("hc_head_")}
    like["mtp.0.ffn.gate.bias"] = tensors["layers.1.ffn.gate.bias"]
    for name, shape in like.items():
        drawn = torch.randn(shape.shape, generator=generator)
        tensors[name] = (0.02 * drawn if shape.dim() > 1 else 1 + 0.05 * drawn).to(shape.dtype)
    save_file(tensors, file, metadata={"format": "pt"})
