"""Megatron's HybridModel of a catalog architecture, on the meta device with Megatron's own layers.

Of each kind of layer it has one, at full width; experts are as many as a token uses. What its layers need and
is not installed here (Transformer Engine, mamba_ssm, flash-linear-attention) has a stand-in of the same
parameters.
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
from megatron.core.models.hybrid import hybrid_block
from megatron.core.models.hybrid.hybrid_block import HybridStack, HybridStackSubmodules
from megatron.core.models.hybrid.hybrid_model import HybridModel
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.ssm import mamba_context_parallel, mamba_mixer
from megatron.core.ssm.gated_delta_net import GatedDeltaNet, GatedDeltaNetSubmodules, gdn
from megatron.core.ssm.gated_delta_net import common as delta
from megatron.core.ssm.mamba_layer import MambaLayer, MambaLayerSubmodules
from megatron.core.ssm.mamba_mixer import MambaMixer, MambaMixerSubmodules
from megatron.core.ssm.mlp_layer import MLPLayer
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.moe import moe_layer
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules
from megatron_operator.catalog.architecture import Architecture


class _Linear(torch.nn.Linear):
    """Stands for Transformer Engine's linear layer, which each tensor-parallel rank has as a whole."""

    def __init__(self, inputs: int, outputs: int, bias: bool = False, **_: object) -> None:
        super().__init__(inputs, outputs, bias=bias)


class _GatedNorm(torch.nn.Module):
    """Stands for the gated norm of mamba_ssm, which has one weight per channel."""

    def __init__(self, channels: int, **_: object) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(channels))


class _Tracker:
    """Stands for CUDA's random states."""

    fork = staticmethod(contextlib.nullcontext)


@contextlib.contextmanager
def _stand_ins() -> Iterator[None]:
    norm = LocalSpecProvider().layer_norm(rms_norm=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "current_device", lambda: "meta")
        patch.setattr(torch.cuda, "Stream", object)
        patch.setattr(hybrid_block, "TENorm", norm)
        patch.setattr(mamba_mixer, "HAVE_MAMBA_SSM", True)
        for module in (mamba_mixer, mamba_context_parallel):
            patch.setattr(module, "HAVE_EINOPS", True)
        patch.setattr(mamba_mixer, "RMSNormGated", _GatedNorm)
        patch.setattr(mamba_mixer, "ExtendedRMSNorm", _GatedNorm)
        patch.setattr(delta, "HAVE_FLA", True)
        patch.setattr(gdn, "chunk_gated_delta_rule", object())
        patch.setattr(moe_layer, "HAVE_TE", True)
        patch.setattr(moe_layer, "TELinear", _Linear)
        for module in (mamba_mixer, delta):
            patch.setattr(module, "get_cuda_rng_tracker", _Tracker)
        yield


def _stack(experts: int, *, normed: bool) -> ModuleSpec:
    """`normed`: queries and keys have norms."""
    norm = LocalSpecProvider().layer_norm(rms_norm=True)
    bda = get_bias_dropout_add
    mamba = MambaMixerSubmodules(in_proj=ColumnParallelLinear, out_proj=RowParallelLinear)
    attention = SelfAttentionSubmodules(
        linear_qkv=ColumnParallelLinear,
        core_attention=DotProductAttention,
        linear_proj=RowParallelLinear,
        q_layernorm=norm if normed else None,
        k_layernorm=norm if normed else None,
    )
    gated = GatedDeltaNetSubmodules(in_proj=ColumnParallelLinear, out_norm=norm, out_proj=RowParallelLinear)
    dense = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
    moe = get_moe_module_spec(use_te=False, num_experts=experts, moe_grouped_gemm=False)

    def layer(module: Any, **parts: Any) -> ModuleSpec:
        return ModuleSpec(module=module, submodules=TransformerLayerSubmodules(**parts))

    causal = {"attn_mask_type": AttnMaskType.causal}
    return ModuleSpec(
        module=HybridStack,
        submodules=HybridStackSubmodules(
            mamba_layer=ModuleSpec(
                module=MambaLayer,
                submodules=MambaLayerSubmodules(
                    norm=norm, mixer=ModuleSpec(module=MambaMixer, submodules=mamba), mamba_bda=bda
                ),
            ),
            gdn_layer=layer(
                TransformerLayer,
                input_layernorm=norm,
                self_attention=ModuleSpec(module=GatedDeltaNet, submodules=gated),
                self_attn_bda=bda,
            ),
            attention_layer=layer(
                TransformerLayer,
                input_layernorm=norm,
                self_attention=ModuleSpec(module=SelfAttention, params=causal, submodules=attention),
                self_attn_bda=bda,
            ),
            mlp_layer=layer(
                MLPLayer,
                pre_mlp_layernorm=norm,
                mlp=partial(MLP.as_mlp_submodule, submodules=dense),
                mlp_bda=bda,
            ),
            moe_layer=layer(TransformerLayer, pre_mlp_layernorm=norm, mlp=moe, mlp_bda=bda),
        ),
    )


def parameters(m: Architecture, pattern: str) -> int:
    """Number of parameters of the model with these layers. Process groups of one rank must exist."""
    gated = bool(m.swiglu or m.geglu)
    with _stand_ins(), torch.device("meta"):
        config = TransformerConfig(
            num_layers=len(pattern),
            hidden_size=m.hidden_size,
            ffn_hidden_size=m.ffn_hidden_size,
            num_attention_heads=m.num_attention_heads,
            num_query_groups=m.num_query_groups,
            kv_channels=m.kv_channels,
            normalization="RMSNorm",
            add_bias_linear=not m.disable_bias_linear,
            gated_linear_unit=gated,
            activation_func=torch.nn.functional.silu if gated else torch.nn.functional.relu,
            qk_layernorm=bool(m.qk_layernorm),
            attention_output_gate=bool(m.attention_output_gate),
            num_moe_experts=m.num_experts,
            moe_ffn_hidden_size=m.moe_ffn_hidden_size,
            moe_shared_expert_intermediate_size=m.moe_shared_expert_intermediate_size,
            moe_shared_expert_gate=bool(m.moe_shared_expert_gate),
            moe_latent_size=m.moe_latent_size,
            moe_router_topk=m.moe_router_topk or 2,
            moe_token_dispatcher_type="alltoall",
            mamba_state_dim=m.mamba_state_dim or 128,
            mamba_head_dim=m.mamba_head_dim or 64,
            mamba_num_groups=m.mamba_num_groups or 8,
            mamba_num_heads=m.mamba_num_heads,
            linear_key_head_dim=m.linear_key_head_dim,
            linear_value_head_dim=m.linear_value_head_dim,
            linear_num_key_heads=m.linear_num_key_heads,
            linear_num_value_heads=m.linear_num_value_heads,
            linear_conv_kernel_dim=4,
            perform_initialization=False,
            use_cpu_initialization=True,
            gradient_accumulation_fusion=False,
            persist_layer_norm=False,
        )
        model = HybridModel(
            config,
            _stack(m.num_experts or 1, normed=bool(m.qk_layernorm)),
            vocab_size=m.vocab_size,
            max_sequence_length=4096,
            hybrid_layer_pattern=pattern,
            share_embeddings_and_output_weights=not m.untie_embeddings_and_output_weights,
            pg_collection=ProcessGroupCollection.use_mpu_process_groups(),
        )
    return sum(parameter.numel() for parameter in model.parameters())
