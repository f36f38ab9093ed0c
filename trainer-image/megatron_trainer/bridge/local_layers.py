"""Megatron's layers without Transformer Engine, latent attention included."""

from typing import Any

from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mla_qk_norm_config import QKNormConfigResolver
from megatron.core.transformer.multi_latent_attention import MLASelfAttention

from megatron_trainer.bridge.local_linear import LayerNormColumnParallelLinear, LocalParts
from megatron_trainer.bridge.packed_attention import PackedDotProductAttention
from megatron_trainer.platform.latent_attention import TwoWidths


class LatentDotProductAttention(TwoWidths, PackedDotProductAttention):
    """Megatron's own, of packed samples too."""


class FullRankLatentAttention(MLASelfAttention):
    """Latent attention whose queries have no low rank: Megatron puts their norm into the projection."""

    def _resolve_qk_norm_config(self, submodules: Any) -> Any:
        resolver = QKNormConfigResolver(self.config, submodules)
        resolver.fused_norm_linear_impl = LayerNormColumnParallelLinear
        return resolver.resolve()


def use_for_prediction() -> None:
    """Have Bridge build layers of multi-token prediction without Transformer Engine; call it once."""
    from megatron.core.models.gpt import gpt_layer_specs

    of_backend = gpt_layer_specs.get_gpt_mtp_block_spec_for_backend

    def of_local_parts(config: Any, spec: Any, use_transformer_engine: bool, **kwargs: Any) -> Any:
        del use_transformer_engine
        return of_backend(config, spec, LocalParts(config), **kwargs)

    gpt_layer_specs.get_gpt_mtp_block_spec = of_local_parts


def local_layers(config: Any, vp_stage: int | None = None) -> Any:
    """Return the layers of a model's configuration."""
    block = get_gpt_decoder_block_spec(
        config, use_transformer_engine=False, normalization=config.normalization, vp_stage=vp_stage
    )
    latent = getattr(config, "multi_latent_attention", False)
    for layer in block.layer_specs:
        parts = layer.submodules.self_attention.submodules
        parts.core_attention = LatentDotProductAttention if latent else PackedDotProductAttention
        if latent and config.q_lora_rank is None:
            parts.q_layernorm = IdentityOp
    return block


def layers_to_pretrain(config: Any, vp_stage: int | None = None) -> Any:
    """Return the layers of a model that starts from random weights.

    With queries of full rank they have a norm that no imported model has.
    """
    block = local_layers(config, vp_stage)
    if getattr(config, "multi_latent_attention", False) and config.q_lora_rank is None:
        for layer in block.layer_specs:
            layer.submodules.self_attention.module = FullRankLatentAttention
    return block
