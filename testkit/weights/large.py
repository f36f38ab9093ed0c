"""Random models of any size, written one tensor at a time."""

import json
from pathlib import Path
from typing import Any

from testkit.weights.families import write_tokenizer


def write_llama(
    folder: Path, *, hidden: int, layers: int, vocabulary: int = 256, file_bytes: int = 1 << 30
) -> int:
    """Write a random Llama in bfloat16 into files of about `file_bytes`; returns the bytes of its weights.

    A layer has 16 x hidden^2 parameters.
    """
    import torch
    import transformers
    from safetensors.torch import save_file

    config = transformers.LlamaConfig(
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_attention_heads=16,
        num_hidden_layers=layers,
        vocab_size=vocabulary,
        tie_word_embeddings=False,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    config.architectures, config.dtype = ["LlamaForCausalLM"], "bfloat16"
    config.save_pretrained(folder)
    write_tokenizer(folder)
    generator = torch.Generator().manual_seed(0)
    files: list[list[str]] = []
    part: dict[str, Any] = {}
    held = total = 0
    tensors = list(model.state_dict().items())
    for number, (name, described) in enumerate(tensors, 1):
        part[name] = torch.empty(described.shape, dtype=torch.bfloat16).normal_(std=0.02, generator=generator)
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
