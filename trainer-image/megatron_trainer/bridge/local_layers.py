"""Megatron's layers without Transformer Engine, latent attention included."""

from typing import Any

from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.transformer.dot_product_attention import DotProductAttention


class LatentDotProductAttention(DotProductAttention):
    """Megatron's own, which takes neither of the two widths that multi-latent attention passes.

    `k_channels` and `v_channels` are the elements of a head's keys and values.
    """

    def __init__(
        self, *args: Any, k_channels: int | None = None, v_channels: int | None = None, **kwargs: Any
    ) -> None:
        del k_channels  # the scale that follows from it is passed as well
        super().__init__(*args, **kwargs)
        if v_channels:
            self.hidden_size_per_partition = v_channels * self.num_attention_heads_per_partition


def local_layers(config: Any, vp_stage: int | None = None) -> Any:
    """Return the layers of a model's configuration."""
    block = get_gpt_decoder_block_spec(
        config, use_transformer_engine=False, normalization=config.normalization, vp_stage=vp_stage
    )
    if getattr(config, "multi_latent_attention", False):
        for layer in block.layer_specs:
            layer.submodules.self_attention.submodules.core_attention = LatentDotProductAttention
    return block
