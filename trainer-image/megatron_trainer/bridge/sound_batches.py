"""Batches of sound and text for Qwen2-Audio.

Megatron-Bridge's own collator takes one sound of a conversation, and its loss counts all that follows the
first answer, what the user writes in later turns too.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from megatron.bridge.data.collators.sequence_padding import use_processor_right_padding
from megatron.bridge.training.utils.visual_inputs import Qwen2AudioInputs

from megatron_trainer.bridge import chatml_batches
from megatron_trainer.bridge.sound import prepared

PROCESSOR: Final = "Qwen2AudioProcessor"


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
    sounds = [prepared(sound, extractor) for sound in chatml_batches.media(conversations, "audio")]
    texts = [processor.apply_chat_template(conversation, tokenize=False) for conversation in conversations]
    given = {"audio": sounds, "sampling_rate": extractor.sampling_rate} if sounds else {}
    with use_processor_right_padding(processor):
        found = processor(text=texts, return_tensors="pt", padding=True, **given)
    batch = {"input_ids": found["input_ids"], "attention_mask": found["attention_mask"]}
    of_sound = Qwen2AudioInputs(found["input_features"], found["feature_attention_mask"]) if sounds else None
    chatml_batches.complete(
        batch,
        {"visual_inputs": of_sound},
        conversations,
        processor,
        sequence_length=sequence_length,
        pad_to_max_length=pad_to_max_length,
    )
    return batch
