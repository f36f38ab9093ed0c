"""Has Megatron-Bridge train Step-3.7 on the images of transformers' processor.

Bridge 0.6.2 trains it on samples of Flickr8k alone, by a training step that makes pixels and places of images
itself. Its rounding of the run's dtype would reach the angles of the vision tower.
"""

from typing import Any, Final

import torch

from megatron_trainer.bridge import media_embeddings


def install() -> None:
    """Call it once in a process, after Bridge is imported."""
    from megatron.bridge.models.stepfun import step37_provider
    from megatron.bridge.models.stepfun.modelling_step37 import utils
    from megatron.bridge.models.stepfun.modelling_step37.model import Step37Model
    from megatron.bridge.utils.common_utils import hook_hf_module_setattr_for_tp_grad_sync

    class RotaryInFP32(utils.EncoderRope2D):
        """Bridge's rotary embedding, whose angles no conversion of the model rounds."""

        freqs_cache: torch.Tensor

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            angles = self.freqs_cache
            del self.freqs_cache
            self.freqs_cache = angles

        def forward(self, q: torch.Tensor, k: torch.Tensor, grid_hw: tuple[int, int]) -> Any:
            """Return rotated queries and keys [images, heads, patches, elements]."""
            self.freqs_cache = self.freqs_cache.to(q.device)
            return super().forward(q, k, grid_hw)

    utils.EncoderRope2D = RotaryInFP32
    Step37Model.forward = _forward
    configure = step37_provider.Step37ModelProvider.provide

    def provide(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.vision_config = _as_bridge_names(self.vision_config)
        model = configure(self, *args, **kwargs)
        # Every tensor-parallel rank has all of both.
        for part in (model.vision_model, model.image_insert_embedding):
            hook_hf_module_setattr_for_tp_grad_sync(part)
        return model

    step37_provider.Step37ModelProvider.provide = provide


_SIZES: Final = {"width": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads"}


def _as_bridge_names(vision: Any) -> Any:
    """State the sizes of transformers' configuration of the tower where Bridge reads them."""
    for name, of_transformers in _SIZES.items():
        setattr(vision, name, getattr(vision, of_transformers))
    vision.ls_init_value = vision.layer_scale_init_value
    vision.use_ln_pre, vision.use_ln_post = True, False
    vision.rope_theta = vision.rope_parameters["rope_theta"]
    return vision


def _features(
    self: Any, pixels: torch.Tensor, of_parts: torch.Tensor | None, counts: torch.Tensor | None
) -> torch.Tensor:
    """Return features [tokens, hidden_size] in the order of the tokens: of an image's parts, then of it all.

    `pixels`, `of_parts` [images, channels, height, width]; `counts`: parts of each image.
    """
    kind = self.vision_model.conv1.weight.dtype
    project = self.image_insert_embedding.align_projector
    whole = project(self.vision_model(pixels.to(kind)))
    if of_parts is None or counts is None:
        return whole.flatten(0, 1)
    parts = project(self.vision_model(of_parts.to(kind))).split(counts.tolist())
    images = zip(parts, whole, strict=True)
    return torch.cat([torch.cat((part.flatten(0, 1), image)) for part, image in images])


def _forward(
    self: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    pixel_values: torch.Tensor | None = None,
    pixel_values_local: torch.Tensor | None = None,
    num_local_patches: torch.Tensor | None = None,
    labels: torch.Tensor | None = None,
    **of_language: Any,
) -> torch.Tensor:
    """Return the loss of each token, or logits, of sequences [batch, length].

    Bridge's own does not split embeddings over the ranks of sequence parallelism.
    """
    embeddings = None
    if self.pre_process:
        images = []
        if pixel_values is not None and len(pixel_values):
            features = _features(self, pixel_values, pixel_values_local, num_local_patches)
            images.append((self.image_token_id, features))
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
