"""Has Megatron-Bridge's Qwen3-Omni take any number of sounds in a sample, and find its positions on CPUs too.

Bridge counts the tokens of a sample where those of one sound are meant, by a method that transformers'
encoder of sound no longer has. Its positions read a mask of attention as one of padding, which is behind a
sample here and needs none.
"""

from typing import Any


def install() -> None:
    """Call it once in a process, after Bridge is imported."""
    from megatron.bridge.models.qwen_omni.modeling_qwen3_omni import thinker_model

    model = thinker_model.Qwen3OmniThinkerModel
    features, positions = model.get_audio_features, thinker_model.get_rope_index

    def of_all_sounds(self: Any, *args: Any, expected_audio_token_counts: Any = None, **kwargs: Any) -> Any:
        del expected_audio_token_counts  # the model compares the features of all sounds with its tokens
        return features(self, *args, **kwargs)

    def of_padded_rows(*args: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        del attention_mask
        return positions(*args, **kwargs)

    model.get_audio_features = of_all_sounds
    thinker_model.get_rope_index = of_padded_rows


def trains(model: Any) -> bool:
    """Whether a model's configuration is that of Qwen3-Omni."""
    return hasattr(model, "thinker_config")
