"""Falcon-H1 (a Mamba-2 mixer beside attention, then an MLP): what Megatron-Bridge leaves out of its layers.

Bridge 0.6.2 computes none of them again in the backward pass, counts no operations of the mixer, sends FP32
to the next pipeline stage, which expects the type of the run, has each tensor-parallel rank save its norms,
which Megatron's checkpoints refuse, and builds them of Transformer Engine alone.
"""

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.ssm.mamba_mixer import MambaMixerSubmodules
from megatron.core.tensor_parallel import checkpoint
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer import ModuleSpec
from megatron.core.transformer.attention import SelfAttentionSubmodules
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.utils import sharded_state_dict_default

from megatron_trainer.bridge import state_space_on_cpu
from megatron_trainer.bridge.local_linear import LayerNormColumnParallelLinear


def install() -> None:
    """Call it once in a process, after Bridge is imported."""
    from megatron.bridge.models.falcon_h1.falconh1_provider import FalconH1ModelProvider
    from megatron.bridge.models.falcon_h1.modeling_falconh1.falconh1_block import FalconH1Stack
    from megatron.bridge.models.falcon_h1.modeling_falconh1.falconh1_layer import FalconH1Layer

    inner, stage = FalconH1Layer.forward, FalconH1Stack.forward

    def forward(
        self: Any, hidden_states: torch.Tensor, attention_mask: Any = None, **options: Any
    ) -> torch.Tensor:
        """Return the output of the layer, of hidden states [positions, batch, hidden_size]."""

        def run(states: torch.Tensor) -> torch.Tensor:
            return inner(self, states, attention_mask, **options)

        again = self.training and recomputes(self.config, self.layer_number)
        return checkpoint(run, False, hidden_states) if again else run(hidden_states)

    def forward_stage(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the output of a pipeline stage, whose residuals are in FP32, in the type of its weights."""
        output: torch.Tensor = stage(self, *args, **kwargs)
        return output.to(self.config.params_dtype)

    FalconH1Layer.forward, FalconH1Stack.forward = forward, forward_stage
    _save_once(FalconH1Layer, "norm")
    _save_once(FalconH1Stack, "final_norm")
    FalconH1ModelProvider._get_num_floating_point_operations = operations
    validate = FalconH1ModelProvider.finalize

    def finalize(self: Any) -> None:
        """Raise ValueError for a recomputation of several layers at once."""
        if self.recompute_method == "uniform" and self.recompute_num_layers not in (None, 1):
            raise ValueError("Falcon-H1 computes each layer again alone: set recompute_num_layers to 1")
        validate(self)

    FalconH1ModelProvider.finalize = finalize


def _save_once(kind: Any, name: str) -> None:
    """Have the norm `name` of modules of a class saved by one of their tensor-parallel ranks."""
    inner = kind.sharded_state_dict

    def sharded_state_dict(
        self: Any, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None
    ) -> dict[str, Any]:
        found: dict[str, Any] = inner(self, prefix, sharded_offsets, metadata)
        if (norm := getattr(self, name, None)) is not None:
            group = parallel_state.get_tensor_model_parallel_group()
            where = f"{prefix}{name}."
            found |= sharded_state_dict_default(norm, where, sharded_offsets or (), metadata, tp_group=group)
        return found

    kind.sharded_state_dict = sharded_state_dict


def recomputes(config: Any, number: int) -> bool:
    """Whether the layer of this number, from 1, is computed again in the backward pass."""
    if config.recompute_granularity != "full":
        return False
    of_stage = config.num_layers // config.pipeline_model_parallel_size
    again = of_stage if config.recompute_method != "block" else config.recompute_num_layers
    return bool((number - 1) % of_stage < again)


def operations(model: Any, batch_size: int) -> int:
    """Return the floating-point operations of a step, forward and backward, as Megatron counts them."""
    hidden, length = model.hidden_size, model.seq_length
    queries = model.num_attention_heads * model.kv_channels
    keys = model.num_query_groups * model.kv_channels
    inner = model.mamba_num_heads * model.mamba_head_dim
    states = model.mamba_num_groups * model.mamba_state_dim
    attention = 2 * hidden * (2 * queries + 2 * keys) + 2 * length * queries
    mixer = 2 * hidden * (3 * inner + 2 * states + model.mamba_num_heads) + 7 * inner * model.mamba_state_dim
    feed_forward = 6 * hidden * model.ffn_hidden_size
    multiple = model.make_vocab_size_divisible_by * model.tensor_model_parallel_size
    vocabulary = -(-model.vocab_size // multiple) * multiple
    each = model.num_layers * (attention + mixer + feed_forward) + 2 * hidden * vocabulary
    return int(3 * batch_size * length * each)


def falcon_h1_stack() -> Any:
    """Return the layers, under the names that Transformer Engine's have in a checkpoint."""
    from megatron.bridge.models.falcon_h1.modeling_falconh1 import falconh1_block as block
    from megatron.bridge.models.falcon_h1.modeling_falconh1 import falconh1_layer as layer

    state_space_on_cpu.install()
    block.TENorm = WrappedTorchNorm
    parts = layer.FalconH1Submodules(
        norm=WrappedTorchNorm,
        mamba_mixer=ModuleSpec(
            module=layer.FalconH1MambaMixer,
            submodules=MambaMixerSubmodules(in_proj=ColumnParallelLinear, out_proj=RowParallelLinear),
        ),
        self_attention=ModuleSpec(
            module=layer.FalconH1SelfAttention,
            submodules=SelfAttentionSubmodules(
                linear_qkv=ColumnParallelLinear,
                core_attention=DotProductAttention,
                linear_proj=RowParallelLinear,
            ),
        ),
        falconh1_bda=get_bias_dropout_add,
        mlp=ModuleSpec(
            module=layer.FalconH1MLP,
            submodules=MLPSubmodules(linear_fc1=LayerNormColumnParallelLinear, linear_fc2=RowParallelLinear),
        ),
        mlp_bda=get_bias_dropout_add,
    )
    mask = {"attn_mask_type": AttnMaskType.causal}
    # All layers of the published models are of this kind.
    each = ModuleSpec(module=layer.FalconH1Layer, params=mask, submodules=parts)
    return ModuleSpec(
        module=block.FalconH1Stack, submodules=block.FalconH1StackSubmodules(falconh1_layer=each)
    )
