"""The model that gives the logits of a small Step-3.5: the text's part of transformers' Step-3.7.

transformers 5.23 has the configuration of Step-3.5 and no class of a model with its output layer.
"""

import json
import re
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Step3p7TextConfig
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.step3p7.modeling_step3p7 import Step3p7PreTrainedModel, Step3p7TextModel

from testkit.weights.step import PREDICTED, PUBLISHED

Step3p5Config: Final = Step3p7TextConfig


class Step3p5ForCausalLM(Step3p7PreTrainedModel):  # type: ignore[misc]
    """transformers' decoder with an output layer."""

    config_class = Step3p7TextConfig

    def __init__(self, config: Step3p7TextConfig) -> None:
        super().__init__(config)
        self.model = Step3p7TextModel(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids: torch.Tensor) -> CausalLMOutput:
        """Return logits [batch, length, vocabulary] of tokens [batch, length]."""
        return CausalLMOutput(logits=self.lm_head(self.model(input_ids).last_hidden_state))


def install() -> None:
    """Have transformers read and write the folders of such models, by the published names of weights."""
    of_text = [
        each
        for each in get_checkpoint_conversion_mapping("step3p7")
        if not any(pattern.startswith("^") for pattern in each.source_patterns)
    ]
    register_checkpoint_conversion_mapping(Step3p5ForCausalLM.__name__, of_text, overwrite=True)
    AutoModelForCausalLM.register(Step3p7TextConfig, Step3p5ForCausalLM, exist_ok=True)


def publish_config(folder: Path, sizes: dict[str, Any]) -> None:
    """Write config.json with the published names of settings, which transformers reads and does not write."""
    settings = {"architectures": [Step3p5ForCausalLM.__name__], **PUBLISHED, **sizes}
    (folder / "config.json").write_text(json.dumps(settings))


def write_prediction(file: Path, layers: int) -> None:
    """Add random layers of multi-token prediction to the file, by the names of stepfun-ai's Step-3.5-Flash.

    `layers`: number of those of the model.
    """
    tensors, generator = load_file(file), torch.Generator().manual_seed(2)
    windowed = {name: x for name, x in tensors.items() if re.match(r"model\.layers\.1\.(?!moe|share)", name)}
    dense = {name: x for name, x in tensors.items() if name.startswith("model.layers.0.mlp.")}
    norm, output = tensors["model.norm.weight"], tensors["lm_head.weight"]
    for number in range(layers, layers + PREDICTED):
        before = f"model.layers.{number}."
        shapes = {before + name.split(".", 3)[3]: like for name, like in (windowed | dense).items()}
        norms = ("enorm", "hnorm", "transformer.shared_head.norm")
        shapes |= {f"{before}{name}.weight": norm for name in norms}
        shapes[f"{before}eh_proj.weight"] = norm.new_empty(len(norm), 2 * len(norm))
        for name, like in shapes.items():
            drawn = torch.randn(like.shape, generator=generator)
            tensors[name] = ((0.02 if like.dim() > 1 else 0.05) * drawn).to(like.dtype)
        tensors[f"{before}transformer.shared_head.output.weight"] = output.clone()
    save_file(tensors, file, metadata={"format": "pt"})
