"""The layers of Qwen3-Next and Qwen3.5 without a GPU: gated delta nets, and attention with a gated output.

Megatron calls flash-linear-attention for the convolution, the norm of queries and keys, and the delta rule,
whose kernels run on GPUs alone, and has the layers of Transformer Engine's parts only. Here the delta rule is
the one in plain torch that Megatron itself has for deterministic runs. Gradients are torch's.
"""

from typing import Any

import torch
from megatron.core.models.gpt import experimental_attention_variant_module_specs as module_specs
from megatron.core.ssm.gated_delta_net import common, gdn
from megatron.core.transformer import ModuleSpec
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp

from megatron_trainer.bridge.local_linear import LocalParts
from megatron_trainer.bridge.state_space_on_cpu import causal_conv1d_fn


def causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    cu_seqlens: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Convolve each channel of `x`, [batch, length, channels], with its own past; as fla's, without a state.

    `weight` is [channels, width], `bias` [channels]; the result is as `x`. `activation` is "silu", "swish" or
    None. Raises ValueError for packed sequences (`cu_seqlens`).
    """
    if cu_seqlens is not None:
        raise ValueError("packed sequences need the kernels of flash-linear-attention, and those a GPU")
    return causal_conv1d_fn(x.transpose(1, 2), weight, bias, activation=activation).transpose(1, 2), None


def l2norm(x: torch.Tensor, dim: int = -1, eps: float = 1e-6) -> torch.Tensor:
    """Return x / sqrt(|x|^2 + eps) over `dim`, computed in FP32, in the type of `x`."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().sum(dim, keepdim=True) + eps)).to(x.dtype)


def install() -> None:
    """Have Megatron build these layers without a GPU; call it once in a process."""
    delta_net: Any = gdn
    parts: Any = common
    delta_net.causal_conv1d = causal_conv1d
    delta_net.chunk_gated_delta_rule = common.torch_chunk_gated_delta_rule
    parts.l2norm = l2norm
    parts.HAVE_FLA = True
    specs: Any = module_specs
    specs._get_backend_spec_provider = LocalParts
    specs._get_self_attention_module_spec = _attention


def _attention(config: Any, backend: LocalParts) -> ModuleSpec:
    head_norm = backend.layer_norm() if config.qk_layernorm else IdentityOp
    return ModuleSpec(
        module=SelfAttention,
        params={"attn_mask_type": AttnMaskType.causal},
        submodules=SelfAttentionSubmodules(
            linear_qkv=backend.column_parallel_layer_norm_linear(),
            core_attention=backend.core_attention(),
            linear_proj=backend.row_parallel_linear(),
            q_layernorm=head_norm,
            k_layernorm=head_norm,
        ),
        metainfo={"fuse_input_layernorm": True},
    )
