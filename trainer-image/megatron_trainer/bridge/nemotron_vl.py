"""Has Megatron-Bridge train Nemotron Nano 2 VL and Nemotron 3 Nano Omni on images and sound.

Bridge 0.6.2 has the sizes of RADIO fixed, an approximate GELU in it, and those of Nano 2 VL's text fixed too.
Features of an image of any size are joined row by row, where the published model joins squares of patches
(`NemotronH_Omni_Reasoning_V3` in transformers). Its model also has one token in place of all of an image.
"""

from collections.abc import Mapping
from typing import Any, Final

import torch

from megatron_trainer.bridge import media_embeddings, nemotron_config
from megatron_trainer.bridge.hybrid_layers import hybrid_layers

_PATCH: Final = 16
"""Pixels of a side of RADIO's patches, which Bridge has fixed."""
_SIDE: Final = 2
"""Patches of a side of the square whose features are one token."""
_NO_VIDEO: Final[Mapping[str, Any]] = {
    **{"temporal_patch_dim": 1, "separate_video_embedder": False, "temporal_ckpt_compat": False},
}
"""Options of the model without the embedder of videos, which are not read."""


def install() -> None:
    """Call it once in a process, after Bridge is imported."""
    from megatron.bridge.models.nemotron_omni import nemotron_omni_bridge, nemotron_omni_provider
    from megatron.bridge.models.nemotron_omni.nemotron_omni_sound import BridgeSoundEncoder
    from megatron.bridge.models.nemotron_vl import nemotron_vl_bridge, nemotron_vl_provider
    from megatron.bridge.models.nemotron_vl.modeling_nemotron_vl import NemotronVLModel

    nemotron_config.install()
    of_images, of_both = nemotron_vl_bridge.NemotronVLBridge, nemotron_omni_bridge.NemotronOmniBridge
    of_images.CONFIG_MAPPING = of_both.CONFIG_MAPPING
    for bridge in (of_images, of_both):
        _follow_config(bridge)
    for provider in (nemotron_vl_provider, nemotron_omni_provider):
        provider.LLaVAModel = _build
    begin = NemotronVLModel.__init__

    def with_language(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        whole = self.llava_model
        self.pre_process, self.post_process = whole.pre_process, whole.post_process
        self.share_embeddings_and_output_weights = whole.share_embeddings_and_output_weights
        self.shared_embedding_or_output_weight = whole.shared_embedding_or_output_weight

    NemotronVLModel.__init__, NemotronVLModel.forward = with_language, _forward
    BridgeSoundEncoder.train = _stay_as_trained


def _follow_config(bridge: Any) -> None:
    """Give the model of a bridge the sizes of config.json that Bridge has fixed."""
    configure = bridge.provider_bridge

    def provider_bridge(self: Any, pretrained: Any) -> Any:
        provider, config = configure(self, pretrained), pretrained.config
        tower = config.vision_config
        provider.tower_sizes = {
            "num_layers": tower.num_hidden_layers,
            "hidden_size": tower.hidden_size,
            "ffn_hidden_size": int(tower.hidden_size * tower.mlp_ratio),
            "num_attention_heads": tower.num_attention_heads,
            "num_query_groups": tower.num_attention_heads,
            "kv_channels": tower.hidden_size // tower.num_attention_heads,
        }
        provider.projector_width = config.projector_hidden_size
        provider.media_options = {"image_token_index": config.img_context_token_id}
        if config.force_image_size is not None:
            provider.media_options |= dict.fromkeys(("img_h", "img_w"), config.force_image_size)
        return provider

    bridge.provider_bridge = provider_bridge


def _build(**options: Any) -> Any:
    """Return Megatron Core's LLaVAModel of Bridge's options, and of the sizes of config.json."""
    from megatron.core.models.multimodal.llava_model import LLaVAModel

    language = options["language_transformer_config"]
    tower = options["vision_transformer_config"]
    for name, size in language.tower_sizes.items():
        setattr(tower, name, size)
    tower.activation_func, tower.bias_activation_fusion = torch.nn.functional.gelu, False
    options["vision_projection_config"].ffn_hidden_size = language.projector_width
    if language.hybrid_stack_spec is hybrid_layers:
        options["language_transformer_layer_spec"] = hybrid_layers(language)
    return LLaVAModel(**options | language.media_options | _NO_VIDEO)


def _stay_as_trained(self: Any, mode: bool = True) -> Any:
    """Keep the encoder of sound without dropout, and its batch norms as they are: it is frozen."""
    del mode
    return torch.nn.Module.train(self, False)


def _forward(
    self: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    pixel_values: torch.Tensor | None = None,
    image_grid_hw: torch.Tensor | None = None,
    input_features: torch.Tensor | None = None,
    input_features_mask: torch.Tensor | None = None,
    labels: torch.Tensor | None = None,
    **of_language: Any,
) -> torch.Tensor:
    """Return the loss of each token, or logits, of sequences [batch, length] with a token for each feature.

    `pixel_values` [patches, channels x patch x patch] of all images, of the sizes in patches `image_grid_hw`
    [images, 2]; `input_features` [sounds, frames, bands] with their mask [sounds, frames].
    """
    del position_ids
    of_language.pop("loss_mask", None)
    whole, embeddings = self.llava_model, None
    if whole.pre_process:
        media = []
        if pixel_values is not None:
            media.append((whole.image_token_index, _of_images(whole, pixel_values, image_grid_hw)))
        if input_features is not None:
            media.append((whole.sound_token_index, _of_sounds(whole, input_features, input_features_mask)))
        embeddings = media_embeddings.embed(
            whole.language_model, input_ids, media, sequence_parallel=self.config.sequence_parallel
        )
    return whole.language_model(
        input_ids=None,
        position_ids=None,
        attention_mask=attention_mask,
        decoder_input=embeddings,
        labels=labels,
        **of_language,
    )


def _of_images(whole: Any, pixel_values: torch.Tensor, image_grid_hw: Any) -> torch.Tensor:
    """Return what the language model gets of images [tokens, hidden], a square of patches each."""
    tower, grids = whole.vision_model, image_grid_hw.tolist()
    pixels = pixel_values.to(tower.position_embeddings.dtype)
    first = tower.class_token_len
    if tower.dynamic_resolution:
        patches = _packed(tower, pixels, image_grid_hw)
        lengths = [first + height * width for height, width in grids]
        images = [part[first:] for part in patches.split(lengths)]
    else:
        side = tower.img_h // _PATCH
        tiles = pixels.view(-1, side, side, 3, _PATCH, _PATCH).permute(0, 3, 1, 4, 2, 5)
        images = [part[first:] for part in tower(tiles.reshape(-1, 3, tower.img_h, tower.img_w))]
    squares = [
        part.view(height // _SIDE, _SIDE, width // _SIDE, _SIDE, -1).transpose(1, 2).flatten(2).flatten(0, 1)
        for part, (height, width) in zip(images, grids, strict=True)
    ]
    projected: torch.Tensor = whole.vision_projection(torch.cat(squares)[:, None])
    return projected[:, 0]


def _packed(tower: Any, pixels: torch.Tensor, grids: torch.Tensor) -> torch.Tensor:
    """Return RADIO's features [tokens of classes and patches, hidden] of images behind one another."""
    from megatron.core.packed_seq_params import PackedSeqParams

    lengths = grids.prod(-1)
    ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    longest = lengths.max().to(torch.int32)
    packed = PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=ends,
        cu_seqlens_kv=ends,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
    )
    features: torch.Tensor = tower(pixels[None], imgs_sizes=grids * _PATCH, packed_seq_params=packed)
    return features[0]


def _of_sounds(whole: Any, features: torch.Tensor, mask: Any) -> torch.Tensor:
    """Return what the language model gets of sounds [tokens, hidden], without their padding.

    The mask leaves out the last frame of each, which counts for the number of its tokens.
    """
    encoder = whole.sound_model.encoder
    found = encoder(input_features=features.to(encoder.dtype), attention_mask=mask).last_hidden_state
    projected: torch.Tensor = whole.sound_projection(found)
    lengths = encoder._get_subsampling_output_length(mask.sum(-1) + 1)
    return projected[torch.arange(found.shape[1], device=found.device) < lengths[:, None]]
