"""The layers of Megatron's hybrid models (Mamba-2, attention, MLP, experts) without Transformer Engine."""

from typing import Any

from megatron.core.models.hybrid import hybrid_block
from megatron.core.post_training.modelopt.hybrid.model_specs import get_hybrid_stack_modelopt_spec
from megatron.core.transformer.torch_norm import WrappedTorchNorm

from megatron_trainer.bridge import state_space_on_cpu


def is_hybrid(model: Any) -> bool:
    """Whether a model's configuration is one of Megatron's HybridModel."""
    return hasattr(model, "hybrid_stack_spec")


def hybrid_layers(_config: Any) -> Any:
    """Return the layers, under the names that Transformer Engine's have in a checkpoint."""
    state_space_on_cpu.install()
    hybrid_block.TENorm = WrappedTorchNorm
    stack = get_hybrid_stack_modelopt_spec(local_core_attention=True, remap_te_layernorm=True)
    layers = stack.submodules
    layers.mamba_layer.submodules.norm = WrappedTorchNorm
    layers.attention_layer.submodules.input_layernorm = WrappedTorchNorm
    for layer in (layers.mlp_layer, layers.moe_layer):
        layer.submodules.pre_mlp_layernorm = WrappedTorchNorm
    return stack
