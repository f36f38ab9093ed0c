"""Batches of sound and text for Qwen2-Audio.

Megatron-Bridge's own collator takes one sound of a conversation, and its loss counts all that follows the
first answer, what the user writes in later turns too.
"""

from collections.abc import Mapping, Sequence
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
from megatron.bridge.training.utils.visual_inputs import Qwen2AudioInputs

from megatron_trainer.bridge.sound import prepared

PROCESSOR: Final = "Qwen2AudioProcessor"
_ROLES: Final = ("system", "user", "tool")


def collate(
    examples: Sequence[Mapping[str, Any]],
    processor: Any,
    *,
    sequence_length: int | None,
    pad_to_max_length: bool,
) -> dict[str, Any]:
    """Return tokens, labels and the mask of the loss [batch, length], and the features of all sounds.

    Labels are those of the next position. The loss counts each answer of the assistant and what ends it.
    Raises ValueError for a sound that is too long or too short.
    """
    extractor = processor.feature_extractor
    conversations = [example["conversation"] for example in examples]
    sounds = [
        prepared(part["audio"], extractor)
        for conversation in conversations
        for message in conversation
        for part in message["content"]
        if part["type"] == "audio"
    ]
    texts = [processor.apply_chat_template(conversation, tokenize=False) for conversation in conversations]
    of_sound = {"audio": sounds, "sampling_rate": extractor.sampling_rate} if sounds else {}
    with use_processor_right_padding(processor):
        found = processor(text=texts, return_tensors="pt", padding=True, **of_sound)
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
    batch["visual_inputs"] = (
        Qwen2AudioInputs(found["input_features"], found["feature_attention_mask"]) if sounds else None
    )
    prepare_sequence_batch(
        batch,
        sequence_length=sequence_length,
        pad_to_max_length=pad_to_max_length,
        pad_token_id=int(processor.tokenizer.pad_token_id or 0),
        ignore_index=IGNORE_INDEX,
    )
    return batch


def _texts(conversation: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The conversation without samples of sound."""
    return [
        {
            **message,
            "content": [{k: v for k, v in part.items() if k != "audio"} for part in message["content"]],
        }
        for message in conversation
    ]
