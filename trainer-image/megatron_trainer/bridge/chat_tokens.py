"""Which tokens of a chat the loss counts, by the function that the run uses; of a document it counts all."""

import json
from typing import Any, Final

from megatron_trainer.bridge import harmony
from megatron_trainer.errors import TrainerError

IDS: Final = "input_ids"
"""The only key of a line with the ids of a document, or of a piece of one."""
_NO_MARKERS: Final = "Unable to build assistant loss mask"
_NO_ANSWER: Final = "AssistantMaskBoundaryConfig did not match"
_WITHOUT_ANSWER: Final = (
    "the loss would count none of its tokens: it has no answer of the assistant; remove the line"
)


_NOT_FOUND: Final = (
    "its answers are not found in what the chat template makes of it, which happens where a message has the "
    "template's own markers: remove them or the line, or put {% generation %} and {% endgeneration %} around "
    "answers in the template"
)


class AnswerError(TrainerError):
    """What a chat has to teach cannot be computed."""


class NothingToLearnError(AnswerError):
    """A chat that a run reads, and of which the loss counts no token."""


def tokenize(record: dict[str, Any], tokenizer: Any) -> tuple[Any, Any]:
    """Return the ids of a chat, and for each whether the loss counts it, as Bridge's dataset does.

    Raises AnswerError if the template refuses the chat or marks no answer in it.
    """
    from megatron.bridge.data.conversation_processing import (
        normalize_chat_conversation,
        tokenize_chat_example,
    )
    from megatron.bridge.data.token_utils import extract_skipped_token_ids

    harmony.install()
    try:
        found = tokenize_chat_example(
            record,
            tokenizer,
            skipped_tokens=extract_skipped_token_ids(tokenizer),
            warn_on_all_masked=False,
        )
    except Exception as error:  # whatever a template of the user raises
        if str(error).startswith(_NO_ANSWER):
            answered = any(turn["role"] == "assistant" for turn in normalize_chat_conversation(record))
            raise AnswerError(_NOT_FOUND if answered else _WITHOUT_ANSWER) from error
        if str(error).startswith(_NO_MARKERS):
            raise AnswerError(
                "the chat template does not mark the answers: it has neither {% generation %} nor markers of "
                "ChatML, Llama 3, Gemma, Kimi or Harmony; put {% generation %} and {% endgeneration %} "
                "around what the assistant writes"
            ) from error
        shown = json.dumps(record, ensure_ascii=False)[:200]
        raise AnswerError(f"the chat template refuses {shown}: {error}") from error
    if not bool(found.assistant_mask.any()):
        raise NothingToLearnError(_WITHOUT_ANSWER)
    return found.input_ids, found.assistant_mask


def ids_of(record: Any) -> list[int] | None:
    """Return the ids of a line with a document, or a piece of one; None for a chat."""
    if not isinstance(record, dict) or record.keys() != {IDS}:
        return None
    found: list[int] = record[IDS]
    return found
