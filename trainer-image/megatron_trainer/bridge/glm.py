"""Has Megatron-Bridge build GLM-4.5V as transformers does, and freeze all of its vision tower.

transformers 5 keeps `partial_rotary_factor` of config.json in `rope_parameters`, and the tokens of images are
settings of the whole model; Bridge 0.6.2 reads both of the text's part. It takes each token of id 0 for
padding, and gives it no position. A frozen tower keeps its norms, its embedding of positions and the
convolution in front of the projector trained.
"""

from typing import Any


def install() -> None:
    """Call it once in a process, after Bridge is imported."""
    from megatron.bridge.models.conversion.model_bridge import MegatronModelBridge
    from megatron.bridge.models.glm.glm47_flash_bridge import GLM47FlashBridge
    from megatron.bridge.models.glm_vl import modeling_glm_45v
    from megatron.bridge.models.glm_vl.glm_45v_bridge import GLM45VBridge

    # The converter writes copies of embedding and output layer, of all families that predict.
    GLM47FlashBridge.maybe_modify_converted_hf_weight = MegatronModelBridge.maybe_modify_converted_hf_weight
    inner = GLM45VBridge.provider_bridge

    def with_settings(self: Any, pretrained: Any) -> Any:
        whole = pretrained.config
        text = whole.text_config
        text.partial_rotary_factor = text.rope_parameters.get("partial_rotary_factor", 1.0)
        for name in _OF_THE_WHOLE:
            setattr(text, name, getattr(whole, name))
        for name, value in _DEFAULTS.items():
            if not hasattr(text, name):
                setattr(text, name, value)
        return inner(self, pretrained)

    GLM45VBridge.provider_bridge = with_settings
    model = modeling_glm_45v.Glm4vModel

    class AllTokensHavePositions(model):  # type: ignore[misc, valid-type]
        """The model of transformers; padding behind the tokens needs no mask."""

        def get_rope_index(self, *args: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
            """Return positions [3, batch, length] and the offset of generated ones."""
            del attention_mask
            return model.get_rope_index(self, *args, **kwargs)

    modeling_glm_45v.Glm4vModel = AllTokensHavePositions
    freeze = modeling_glm_45v.GLM45VModel.freeze

    def with_whole_tower(self: Any, *, freeze_vision_model: bool, **parts: bool) -> None:
        freeze(self, freeze_vision_model=freeze_vision_model, **parts)
        # Only the first pipeline stage has the tower.
        if freeze_vision_model and hasattr(self, "visual"):
            for name, parameter in self.visual.named_parameters():
                if not name.startswith(_PROJECTOR):
                    parameter.requires_grad = False

    modeling_glm_45v.GLM45VModel.freeze = with_whole_tower


_OF_THE_WHOLE = (
    *("image_token_id", "image_start_token_id", "image_end_token_id"),
    *("video_token_id", "video_start_token_id", "video_end_token_id"),
)
_DEFAULTS = {"use_qk_norm": False}
_PROJECTOR = "merger."
"""What names of the projector's weights begin with in the tower."""
