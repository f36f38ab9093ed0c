"""The model that gives the logits of a small Llama-Nemotron, as its published code computes them.

Layers of transformers' Llama, each with or without attention and feed-forward part (arXiv:2505.00949).
"""

from typing import Any, Final

import torch
from megatron_trainer.bridge.llama_nemotron import LlamaNemotronConfig
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaMLP

_MULTIPLE: Final = 256


def ffn_width(multiplier: float, hidden: int) -> int:
    """The width of a feed-forward part, as the published code rounds it up."""
    return -(-int(2 * multiplier * hidden / 3) // _MULTIPLE) * _MULTIPLE


class LlamaNemotronForCausalLM(LlamaForCausalLM):  # type: ignore[misc]
    """Llama with layers of the sizes of `block_configs`."""

    config_class = LlamaNemotronConfig

    def __init__(self, config: LlamaNemotronConfig) -> None:
        plain = LlamaConfig(**config.to_dict() | {"model_type": "llama", "intermediate_size": 1})
        plain._attn_implementation = "eager"
        super().__init__(plain)
        for number, block in enumerate(config.block_configs or ()):
            self.model.layers[number] = _Layer(plain, number, block)
        self.post_init()
        self.config = config


class _Layer(LlamaDecoderLayer):  # type: ignore[misc]
    def __init__(self, config: LlamaConfig, number: int, block: Any) -> None:
        super().__init__(config, number)
        if block.attention.no_op:
            self.input_layernorm = self.self_attn = None
        if block.ffn.no_op:
            self.post_attention_layernorm = self.mlp = None
        else:
            width = ffn_width(block.ffn.ffn_mult, config.hidden_size)
            own = LlamaConfig(**config.to_dict() | {"intermediate_size": width})
            self.mlp = LlamaMLP(own)

    def forward(self, hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """Return the residual stream [batch, positions, hidden] behind the layer."""
        if self.self_attn is not None:
            attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
            hidden_states = hidden_states + attended
        if self.mlp is not None:
            hidden_states = hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))  # type: ignore[misc]
        return hidden_states


def install() -> None:
    """Have transformers read the folders of such models."""
    from megatron_trainer.bridge import llama_nemotron

    llama_nemotron.install()
    AutoModelForCausalLM.register(LlamaNemotronConfig, LlamaNemotronForCausalLM, exist_ok=True)
