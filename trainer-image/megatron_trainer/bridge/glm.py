"""Has Megatron-Bridge build GLM-4.5V as transformers does.

transformers 5 keeps `partial_rotary_factor` of config.json in `rope_parameters`, and the tokens of images are
settings of the whole model; Bridge 0.6.2 reads both of the text's part. It takes each token of id 0 for
padding, and gives it no position.
"""

from typing import Any


def install() -> None:
    """Call it once in a process, after Bridge is imported."""
    from megatron.bridge.models.glm_vl import modeling_glm_45v
    from megatron.bridge.models.glm_vl.glm_45v_bridge import GLM45VBridge

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


_OF_THE_WHOLE = (
    *("image_token_id", "image_start_token_id", "image_end_token_id"),
    *("video_token_id", "video_start_token_id", "video_end_token_id"),
)
_DEFAULTS = {"use_qk_norm": False}
