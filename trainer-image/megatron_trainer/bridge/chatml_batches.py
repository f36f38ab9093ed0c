"""What batches of conversations have in common whose template is ChatML (`<|im_start|>assistant`)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from megatron.bridge.data.collators.sequence import prepare_sequence_batch
from megatron.bridge.data.conversation_processing import (
    apply_assistant_labels_to_batch,
    assistant_mask_boundary_config_from_markers,
    ensure_position_ids,
)
from megatron.bridge.data.datasets.utils import IGNORE_INDEX
from megatron.bridge.data.token_utils import extract_skipped_token_ids

type Conversations = Sequence[Sequence[Mapping[str, Any]]]

_ROLES: Final = ("system", "developer", "user", "tool")
_MEDIA: Final = ("audio", "image")


def media(conversations: Conversations, kind: str) -> Iterator[Any]:
    """Yield what the messages have of `audio` or `image`."""
    for conversation in conversations:
        for message in conversation:
            yield from (part[kind] for part in message["content"] if part["type"] == kind)


def complete(
    batch: dict[str, Any],
    features: Mapping[str, Any],
    conversations: Conversations,
    processor: Any,
    *,
    sequence_length: int | None,
    pad_to_max_length: bool,
    boundaries: Any = None,
) -> None:
    """Add labels, the mask of the loss and positions [batch, length] to a batch of tokens, and its features.

    Labels are those of the next position. The loss counts each answer of the assistant and what ends it.
    `boundaries`: Bridge's of an answer, by default those of ChatML.
    """
    # With the tokenizer alone no features are computed again.
    apply_assistant_labels_to_batch(
        batch,
        [{"conversation": _texts(conversation)} for conversation in conversations],
        processor.tokenizer,
        extract_skipped_token_ids(processor),
        boundary_config=boundaries or of_chatml(processor),
    )
    ensure_position_ids(batch)
    batch.update(features)
    prepare_sequence_batch(
        batch,
        sequence_length=sequence_length,
        pad_to_max_length=pad_to_max_length,
        pad_token_id=int(processor.tokenizer.pad_token_id or 0),
        ignore_index=IGNORE_INDEX,
    )


def of_chatml(processor: Any, **options: Any) -> Any:
    """Return Bridge's boundaries of an answer in ChatML, with further options of theirs."""
    return assistant_mask_boundary_config_from_markers(
        processor,
        assistant_start="<|im_start|>assistant\n",
        assistant_end="<|im_end|>\n",
        assistant_end_fallbacks=("<|im_end|>",),
        role_start_markers={role: f"<|im_start|>{role}\n" for role in _ROLES},
        **options,
    )


def _texts(conversation: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The conversation without images and samples of sound."""
    return [
        {
            **message,
            "content": [{k: v for k, v in part.items() if k not in _MEDIA} for part in message["content"]],
        }
        for message in conversation
    ]
