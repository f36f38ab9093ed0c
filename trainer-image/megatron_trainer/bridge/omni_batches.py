"""Batches of images, sound and text for Qwen3-Omni.

Megatron-Bridge's own collator has the processor load media by their names.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from megatron.bridge.data.collators.sequence import prepare_sequence_batch
from megatron.bridge.data.collators.sequence_padding import use_processor_right_padding
from megatron.bridge.data.conversation_processing import (
    apply_assistant_labels_to_batch,
    assistant_mask_boundary_config_from_markers,
    ensure_position_ids,
)
from megatron.bridge.data.datasets.utils import IGNORE_INDEX
from megatron.bridge.data.token_utils import extract_skipped_token_ids

from megatron_trainer.bridge.sound import prepared

PROCESSOR: Final = "Qwen3OmniMoeProcessor"
MEDIA: Final = ("pixel_values", "image_grid_thw", "input_features", "feature_attention_mask")
"""What the model takes of images and sounds."""
_ROLES: Final = ("system", "developer", "user", "tool")


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
    images = list(_media(conversations, "image"))
    sounds = [prepared(sound, extractor) for sound in _media(conversations, "audio")]
    texts = [processor.apply_chat_template(conversation, tokenize=False) for conversation in conversations]
    given = ({"images": images} if images else {}) | ({"audio": sounds} if sounds else {})
    with use_processor_right_padding(processor):
        found = processor(text=texts, return_tensors="pt", padding=True, padding_side="right", **given)
    batch = {"input_ids": found["input_ids"], "attention_mask": found["attention_mask"]}
    # With the tokenizer alone no features are computed again.
    apply_assistant_labels_to_batch(
        batch,
        [{"conversation": _texts(conversation)} for conversation in conversations],
        processor.tokenizer,
        extract_skipped_token_ids(processor),
        boundary_config=assistant_mask_boundary_config_from_markers(
            processor,
            assistant_start="<|im_start|>assistant\n",
            assistant_end="<|im_end|>\n",
            assistant_end_fallbacks=("<|im_end|>",),
            role_start_markers={role: f"<|im_start|>{role}\n" for role in _ROLES},
        ),
    )
    ensure_position_ids(batch)
    batch |= {name: found[name] for name in MEDIA if found.get(name) is not None}
    prepare_sequence_batch(
        batch,
        sequence_length=sequence_length,
        pad_to_max_length=pad_to_max_length,
        pad_token_id=int(processor.tokenizer.pad_token_id or 0),
        ignore_index=IGNORE_INDEX,
    )
    return batch


def _media(conversations: Sequence[Sequence[Mapping[str, Any]]], kind: str) -> Iterator[Any]:
    for conversation in conversations:
        for message in conversation:
            yield from (part[kind] for part in message["content"] if part["type"] == kind)


def _texts(conversation: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The conversation without images and samples of sound."""
    media = ("audio", "image")
    return [
        {
            **message,
            "content": [{k: v for k, v in part.items() if k not in media} for part in message["content"]],
        }
        for message in conversation
    ]
