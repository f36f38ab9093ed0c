"""Random models of any size, written one tensor at a time."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from testkit.weights.families import write_tokenizer


def write_llama(
    folder: Path, *, hidden: int, layers: int, vocabulary: int = 256, file_bytes: int = 1 << 30
) -> int:
    """Write a random Llama in bfloat16 into files of about `file_bytes`; returns the bytes of its weights.

    A layer has 16 x hidden^2 parameters.
    """
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_attention_heads=16,
        num_hidden_layers=layers,
        vocab_size=vocabulary,
        tie_word_embeddings=False,
    )
    return _write(folder, "LlamaForCausalLM", config, file_bytes)


def write_experts(
    folder: Path,
    *,
    hidden: int,
    layers: int,
    vocabulary: int,
    experts: int,
    width: int,
    joined: bool,
    file_bytes: int = 1 << 30,
) -> int:
    """Write a random model with experts of that width in bfloat16; returns the bytes of its weights.

    `joined`: GPT-OSS, whose files have a tensor for a matrix of all experts of a layer; else Qwen3-MoE, with
    tensors for each expert. A layer has 3 x hidden x width x experts parameters, and some more.
    """
    import transformers

    sizes: dict[str, Any] = {
        **{"hidden_size": hidden, "num_hidden_layers": layers, "vocab_size": vocabulary},
        **{"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64, "num_experts_per_tok": 2},
        "tie_word_embeddings": False,
    }
    if joined:
        sizes |= {"intermediate_size": width, "num_local_experts": experts}
        return _write(folder, "GptOssForCausalLM", transformers.GptOssConfig(**sizes), file_bytes)
    sizes |= {"moe_intermediate_size": width, "num_experts": experts, "norm_topk_prob": True}
    return _write(folder, "Qwen3MoeForCausalLM", transformers.Qwen3MoeConfig(**sizes), file_bytes)


def _write(folder: Path, architecture: str, config: Any, file_bytes: int) -> int:
    import torch
    import transformers
    from safetensors.torch import save_file

    with torch.device("meta"):
        model = getattr(transformers, architecture)(config)
    config.architectures, config.dtype = [architecture], "bfloat16"
    config.save_pretrained(folder)
    write_tokenizer(folder)
    generator = torch.Generator().manual_seed(0)
    files: list[list[str]] = []
    part: dict[str, Any] = {}
    held = total = 0
    tensors = list(_stored(model.state_dict(), architecture))
    for number, (name, shape) in enumerate(tensors, 1):
        part[name] = torch.empty(shape, dtype=torch.bfloat16).normal_(std=0.02, generator=generator)
        held += part[name].nbytes
        if held >= file_bytes or number == len(tensors):
            files.append(list(part))
            save_file(part, folder / f"model-{len(files):05}.safetensors", metadata={"format": "pt"})
            part, held, total = {}, 0, total + held
    placed = {
        name: f"model-{number:05}.safetensors" for number, names in enumerate(files, 1) for name in names
    }
    index = {"metadata": {"total_size": total}, "weight_map": placed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def _stored(state: dict[str, Any], architecture: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield names and shapes as `save_pretrained` writes them: Qwen3-MoE's experts one by one."""
    for name, tensor in state.items():
        before, joined, matrix = name.partition("mlp.experts.")
        if architecture == "Qwen3MoeForCausalLM" and joined:
            count, rows, columns = tensor.shape
            gated = matrix == "gate_up_proj"
            for expert in range(count):
                for part in ("gate_proj", "up_proj") if gated else ("down_proj",):
                    shape = (rows // 2 if gated else rows, columns)
                    yield f"{before}{joined}{expert}.{part}.weight", shape
        else:
            yield name, tuple(tensor.shape)
