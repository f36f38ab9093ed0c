"""Batches of images, sound and text for Qwen3-Omni.

Megatron-Bridge's own collator has the processor load media by their names.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from megatron.bridge.data.collators.sequence_padding import use_processor_right_padding

from megatron_trainer.bridge import chatml_batches
from megatron_trainer.bridge.sound import prepared

PROCESSOR: Final = "Qwen3OmniMoeProcessor"
MEDIA: Final = ("pixel_values", "image_grid_thw", "input_features", "feature_attention_mask")
"""What the model takes of images and sounds."""


def collate(
    examples: Sequence[Mapping[str, Any]],
    processor: Any,
    *,
    sequence_length: int | None,
    pad_to_max_length: bool,
) -> dict[str, Any]:
    """Return tokens, labels and the mask of the loss [batch, length], and what MEDIA names of all media.

    Labels are those of the next position. The loss counts each answer of the assistant and what ends it.
    Raises ValueError for a sound that is too long or too short.
    """
    extractor = processor.feature_extractor
    conversations = [example["conversation"] for example in examples]
    images = list(chatml_batches.media(conversations, "image"))
    sounds = [prepared(sound, extractor) for sound in chatml_batches.media(conversations, "audio")]
    texts = [processor.apply_chat_template(conversation, tokenize=False) for conversation in conversations]
    given = ({"images": images} if images else {}) | ({"audio": sounds} if sounds else {})
    with use_processor_right_padding(processor):
        found = processor(text=texts, return_tensors="pt", padding=True, padding_side="right", **given)
    batch = {"input_ids": found["input_ids"], "attention_mask": found["attention_mask"]}
    features = {name: found[name] for name in MEDIA if found.get(name) is not None}
    chatml_batches.complete(
        batch,
        features,
        conversations,
        processor,
        sequence_length=sequence_length,
        pad_to_max_length=pad_to_max_length,
    )
    return batch
