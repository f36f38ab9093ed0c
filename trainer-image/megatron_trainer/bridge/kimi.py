"""Has Megatron-Bridge build the vision tower and the projector of Kimi-K2.5 of transformers' classes.

Bridge 0.6.2 runs code of the model's folder for both. The classes of transformers 5.23 have other names of
weights, which are mapped to those of the folder, and separate queries, keys and values, in another order.
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final

import torch

from megatron_trainer.bridge import media_embeddings

_BLOCK, _OF_FOLDER = "vision_tower.layers.*.", "vision_tower.encoder.blocks.*."
_NAMES: Final[Mapping[str, str]] = {
    "vision_tower.patch_embed.proj": "vision_tower.patch_embed.proj",
    _BLOCK + "norm1": _OF_FOLDER + "norm0",
    _BLOCK + "norm2": _OF_FOLDER + "norm1",
    _BLOCK + "attn.wqkv": _OF_FOLDER + "wqkv",
    _BLOCK + "attn.proj": _OF_FOLDER + "wo",
    _BLOCK + "mlp.fc1": _OF_FOLDER + "mlp.fc0",
    _BLOCK + "mlp.fc2": _OF_FOLDER + "mlp.fc1",
    "vision_tower.final_layernorm": "vision_tower.encoder.final_layernorm",
    "mm_projector.pre_norm": "mm_projector.pre_norm",
    "mm_projector.in_proj": "mm_projector.proj.0",
    "mm_projector.out_proj": "mm_projector.proj.2",
}
"""Layers of tower and projector as transformers names them -> as the folder does."""
_POSITIONS: Final = (
    "vision_tower.patch_embed.pos_emb.position_embeddings",
    "vision_tower.patch_embed.pos_emb.weight",
)
"""The same of the embedding of positions, which is no layer."""
_SIZES: Final = {
    "vt_hidden_size": "hidden_size",
    "vt_intermediate_size": "intermediate_size",
    "vt_num_attention_heads": "num_attention_heads",
    "vt_num_hidden_layers": "num_hidden_layers",
    "init_pos_emb_height": "pos_emb_height",
    "init_pos_emb_width": "pos_emb_width",
    "init_pos_emb_time": "pos_emb_time",
}
"""Settings of `vision_config` as the published folders name them, and as transformers does."""


def install() -> None:
    """Call it once in a process, after Bridge is imported."""
    from megatron.bridge.models.conversion.mapping_registry import MegatronMappingRegistry
    from megatron.bridge.models.conversion.param_mapping import ReplicatedMapping
    from megatron.bridge.models.kimi_vl.kimi_k25_vl_bridge import KimiK25VLBridge
    from megatron.bridge.models.kimi_vl.modeling_kimi_k25_vl import KimiK25VLModel

    configure, names = KimiK25VLBridge.provider_bridge, KimiK25VLBridge.mapping_registry

    def with_tokens(self: Any, pretrained: Any) -> Any:
        config = pretrained.config
        provider = configure(self, pretrained)
        provider.image_token_id = provider.media_placeholder_token_id = getattr(
            config, "media_placeholder_token_id", config.image_token_id
        )
        vision = config.vision_config
        for published, name in _SIZES.items():
            if hasattr(vision, published):
                setattr(vision, name, getattr(vision, published))
        vision.projector_ln_eps = getattr(vision, "projector_ln_eps", config.projection_layer_norm_eps)
        return provider

    def of_transformers(self: Any) -> Any:
        others = [x for x in names(self).mappings if not x.megatron_param.startswith(("vision", "mm_"))]
        towers = [_POSITIONS] + [
            (f"{layer}.{leaf}", f"{of_folder}.{leaf}")
            for layer, of_folder in _NAMES.items()
            for leaf in ("weight", "bias")
        ]
        mapped = [ReplicatedMapping(megatron_param=name, hf_param=folder) for name, folder in towers]
        return MegatronMappingRegistry(*others, *mapped)

    def as_they_are(_self: Any, _task: Any, weights: Any, _of_folder: Any) -> Any:
        return weights

    KimiK25VLBridge.provider_bridge = with_tokens
    # Bridge writes experts in INT4. Folders in it are refused, so a copy in BF16 was imported.
    KimiK25VLBridge.maybe_modify_converted_hf_weight = as_they_are
    KimiK25VLBridge.mapping_registry = of_transformers
    KimiK25VLModel.__init__ = _build
    KimiK25VLModel.forward = _forward


def _build(
    self: Any, config: Any, pre_process: bool = True, post_process: bool = True, vp_stage: int | None = None
) -> None:
    """Build the parts of a pipeline stage. `config`: Bridge's configuration of the model."""
    from megatron.bridge.utils.common_utils import hook_hf_module_setattr_for_tp_grad_sync
    from megatron.core.transformer.module import MegatronModule

    MegatronModule.__init__(self, config=config)
    self.pre_process, self.post_process, self.vp_stage = pre_process, post_process, vp_stage
    if pre_process:
        self.vision_tower = _tower(config.vision_config)
        self.mm_projector = _projector(config)
        hook_hf_module_setattr_for_tp_grad_sync(self.vision_tower)
        hook_hf_module_setattr_for_tp_grad_sync(self.mm_projector)
    self.language_model = config.provide_language_model(
        pre_process=pre_process, post_process=post_process, vp_stage=vp_stage
    )
    self.share_embeddings_and_output_weights = config.share_embeddings_and_output_weights
    self.shared_embedding_or_output_weight = self.language_model.shared_embedding_or_output_weight


def _tower(config: Any) -> Any:
    """Return the vision tower, with the weights of attention as the folder has them."""
    from transformers import Kimi_K25VisionModel
    from transformers.models.kimi_k25.modeling_kimi_k25 import Kimi_K25VisionAttention
    from transformers.utils import is_flash_attn_2_available

    class JointAttention(Kimi_K25VisionAttention):
        """Attention with one linear layer, whose elements 2i and 2i + 1 of each head rotate together."""

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            for name in ("q_proj", "k_proj", "v_proj"):
                delattr(self, name)
            self.wqkv = torch.nn.Linear(self.dim, 3 * self.dim)

        def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            """Return the attention of patches [patches, hidden] of the images."""
            return super().forward(self.wqkv(hidden_states), *args, **kwargs)

        def q_proj(self, joint: torch.Tensor) -> torch.Tensor:
            return self._halves(joint[:, : self.dim])

        def k_proj(self, joint: torch.Tensor) -> torch.Tensor:
            return self._halves(joint[:, self.dim : 2 * self.dim])

        def v_proj(self, joint: torch.Tensor) -> torch.Tensor:
            return joint[:, 2 * self.dim :]

        def _halves(self, values: torch.Tensor) -> torch.Tensor:
            """Return values [patches, hidden] with elements i and i + half of each head as a pair."""
            pairs = values.view(len(values), self.num_heads, -1, 2)
            return pairs.transpose(2, 3).reshape(values.shape)

    kind = "flash_attention_2" if is_flash_attn_2_available() else "sdpa"
    tower = Kimi_K25VisionModel._from_config(config, attn_implementation=kind)
    for layer in tower.layers:
        layer.attn = JointAttention(tower.config)
    rotary = tower.rotary_emb
    frequencies = rotary.inv_freq
    del rotary.inv_freq
    # No buffer, which Megatron would round to the dtype of the weights.
    rotary.inv_freq = frequencies
    return tower


def _projector(config: Any) -> Any:
    from transformers.models.kimi_k25.modeling_kimi_k25 import Kimi_K25MultimodalProjection

    vision = config.vision_config
    return Kimi_K25MultimodalProjection(
        SimpleNamespace(
            vision_config=vision,
            projection_hidden_size=vision.hidden_size,
            projection_layer_norm_eps=vision.projector_ln_eps,
            text_config=SimpleNamespace(hidden_size=config.hidden_size),
        )
    )


def _forward(
    self: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    pixel_values: torch.Tensor | None = None,
    image_grid_thw: torch.Tensor | None = None,
    labels: torch.Tensor | None = None,
    **of_language: Any,
) -> torch.Tensor:
    """Return the loss of each token, or logits, of sequences [batch, length].

    Bridge's own drops the mask of attention, which Megatron's layers without Transformer Engine take.
    `pixel_values` [patches, channels, patch, patch] of all images, of the sizes `image_grid_thw` [images, 3].
    """
    embeddings = None
    if self.pre_process:
        images = []
        if pixel_values is not None and len(pixel_values):
            pixels = pixel_values.to(self.vision_tower.dtype)
            merged = self.vision_tower(pixels, grid_thw=image_grid_thw).pooler_output
            images.append((self.config.image_token_id, self.mm_projector(merged).squeeze(1)))
        embeddings = media_embeddings.embed(
            self.language_model, input_ids, images, sequence_parallel=self.config.sequence_parallel
        )
    return self.language_model(
        input_ids=None,
        position_ids=position_ids,
        attention_mask=attention_mask,
        decoder_input=embeddings,
        labels=labels,
        **of_language,
    )
