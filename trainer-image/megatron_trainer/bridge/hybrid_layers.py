"""The layers of Megatron's hybrid models (Mamba-2, attention, MLP, experts) without Transformer Engine."""

from typing import Any

from megatron.core.models.hybrid import hybrid_block
from megatron.core.post_training.modelopt.hybrid.model_specs import get_hybrid_stack_modelopt_spec
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from megatron.core.transformer.moe import moe_layer
from megatron.core.transformer.torch_norm import WrappedTorchNorm

from megatron_trainer.bridge import state_space_on_cpu
from megatron_trainer.bridge.local_linear import DuplicatedLinear


class InputProjection(ColumnParallelLinear):
    """The first projection of a state-space layer; an adapter of it needs the size of its group."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tp_size = self.tp_group.size()


def hybrid_layers(_config: Any) -> Any:
    """Return the layers, under the names that Transformer Engine's have in a checkpoint."""
    state_space_on_cpu.install()
    hybrid_block.TENorm = WrappedTorchNorm
    moe_layer.HAVE_TE, moe_layer.TELinear = True, DuplicatedLinear
    stack = get_hybrid_stack_modelopt_spec(local_core_attention=True, remap_te_layernorm=True)
    layers = stack.submodules
    state_space = layers.mamba_layer.submodules
    state_space.norm = WrappedTorchNorm
    state_space.mixer.submodules.in_proj = InputProjection
    layers.attention_layer.submodules.input_layernorm = WrappedTorchNorm
    for layer in (layers.mlp_layer, layers.moe_layer):
        layer.submodules.pre_mlp_layernorm = WrappedTorchNorm
    for layer in layers.mtp_block_spec.submodules.layer_specs:
        prediction = layer.submodules
        prediction.enorm = prediction.hnorm = prediction.layer_norm = WrappedTorchNorm
    return stack
