"""Models that read images: what Megatron-Bridge builds of Transformer Engine only, and what it leaves out."""

from typing import Any

import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.vision import vit_layer_specs
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from torch.nn.functional import scaled_dot_product_attention

from megatron_trainer.bridge.local_linear import LayerNormColumnParallelLinear
from megatron_trainer.platform.zero_centred_norms import ZeroCentredRMSNorm


def install() -> None:
    """Have Bridge's towers and projectors of Megatron's own layers built without Transformer Engine."""
    from megatron.bridge.models.exaone.exaone45.modelling_exaone45 import model as exaone45
    from megatron.bridge.models.gemma_vl import modeling_gemma3_vl
    from megatron.bridge.models.nemotron_omni import nemotron_omni_provider
    from megatron.bridge.models.nemotron_vl import nemotron_vl_provider
    from megatron.bridge.models.qwen_vl import qwen3_vl_provider
    from megatron.bridge.models.qwen_vl.modelling_qwen3_vl import model

    qwen3_vl_provider.get_gpt_layer_with_transformer_engine_spec = _text_layer
    for tower in (model, exaone45):
        tower.get_vit_layer_with_transformer_engine_spec = _vision_layer
        tower.TENorm = WrappedTorchNorm
        tower.TEColumnParallelLinear, tower.TERowParallelLinear = ColumnParallelLinear, RowParallelLinear
    modeling_gemma3_vl.TENorm = ZeroCentredRMSNorm
    nemotron_omni_provider.get_vit_layer_with_transformer_engine_spec = _vision_layer
    nemotron_vl_provider.get_vit_layer_with_transformer_engine_spec = _layer_of_tiles
    for provider in (nemotron_omni_provider, nemotron_vl_provider):
        provider.get_language_mlp_submodules = _projector


def follow_config(provider: Any) -> None:
    """Give a model the settings of config.json that Bridge leaves out."""
    follow_rope(provider)
    follow_image_size(provider)


def follow_image_size(provider: Any) -> None:
    """Have the projector of Gemma 3 pool the patches of an image of the tower's size to its tokens."""
    if hasattr(provider, "mm_tokens_per_image"):
        projector, tower = provider.vision_projector_config, provider.vision_config
        projector.image_size, projector.patch_dim = tower.image_size, tower.patch_size
        projector.tokens_per_image = provider.mm_tokens_per_image
        projector.layernorm_epsilon = tower.layer_norm_eps


def follow_rope(provider: Any) -> None:
    """Have Ministral 3 round the range of YaRN's correction where transformers does; Bridge never does."""
    text = getattr(getattr(provider, "hf_config", None), "text_config", None)
    if text is not None and hasattr(provider, "yarn_correction_range_round_to_int"):
        rope = text.rope_parameters
        provider.yarn_correction_range_round_to_int = bool(rope.get("truncate", True))


def freeze_prediction(provider: Any) -> None:
    """Freeze multi-token prediction with the language model, of which EXAONE 4.5 has it apart."""
    if hasattr(provider, "freeze_mtp_model"):
        provider.freeze_mtp_model = provider.freeze_language_model


def _text_layer(*, num_experts: int | None, qk_layernorm: bool, **_: Any) -> Any:
    """A layer of the language model."""
    return get_gpt_layer_local_spec(num_experts, False, qk_layernorm, normalization="RMSNorm")


def _projector(_language: Any) -> Any:
    """The parts of a projector of RADIO or Parakeet, which begins with a norm."""
    return MLPSubmodules(linear_fc1=LayerNormColumnParallelLinear, linear_fc2=RowParallelLinear)


def _vision_layer() -> Any:
    layer = _layer_of_tiles()
    layer.submodules.self_attention.submodules.core_attention = AttentionWithinImages
    return layer


def _layer_of_tiles() -> Any:
    """A layer of a tower whose images are a batch [patches, images, hidden] of one size."""
    layer: Any = vit_layer_specs.get_vit_layer_with_local_spec()
    # Where Transformer Engine's layers, which a GPU has, hold these norms.
    layer.submodules.sharded_state_dict_keys_map = {
        "input_layernorm.": "self_attention.linear_qkv.layer_norm_",
        "pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_",
    }
    return layer


class AttentionWithinImages(MegatronModule):
    """Attention of each image's patches to one another, which Megatron's own attention does not split."""

    def __init__(self, config: Any, *_: Any, **__: Any) -> None:
        super().__init__(config=config)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *_: Any,
        packed_seq_params: Any,
        **__: Any,
    ) -> torch.Tensor:
        """Return [patches, heads * elements] for inputs [patches, heads, elements] of all images.

        Keys and values may have fewer heads, each for as many of the queries. Windows count as images.
        """
        lengths = packed_seq_params.cu_seqlens_q.diff().tolist()
        of_images = zip(*(part.split(lengths) for part in (query, key, value)), strict=True)
        attended = [_attend(*(part.transpose(0, 1) for part in image)) for image in of_images]
        return torch.cat([part.transpose(0, 1) for part in attended]).flatten(1)


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return the attention [heads, patches, elements] of one image, or window."""
    return scaled_dot_product_attention(query, key, value, enable_gqa=len(query) != len(key))
