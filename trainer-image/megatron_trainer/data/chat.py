"""Conversations, in OpenAI's and ShareGPT's forms, as text of the tokenizer's chat template."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from megatron_trainer.errors import TrainerError

ROLES: Final = {
    "human": "user",
    "gpt": "assistant",
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
}
"""Speaker of ShareGPT -> role of a chat template."""


class ConversationError(TrainerError):
    """A record is no conversation, or the template cannot show it."""


def to_messages(record: Any) -> list[dict[str, Any]]:
    """Return the messages of a record with `messages` or `conversations`. Raises ConversationError."""
    if not isinstance(record, dict):
        raise ConversationError("the record is not an object")
    if "messages" in record:
        messages = record["messages"]
        if not isinstance(messages, list) or not messages:
            raise ConversationError('"messages" is not a list of messages')
        for message in messages:
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise ConversationError('a message has no "role"')
        return messages
    turns = record.get("conversations")
    if not isinstance(turns, list) or not turns:
        raise ConversationError('the record has neither "messages" nor "conversations"')
    return [_message(turn) for turn in turns]


def _message(turn: Any) -> dict[str, Any]:
    speaker = turn.get("from") if isinstance(turn, dict) else None
    if speaker not in ROLES or not isinstance(turn.get("value"), str):
        raise ConversationError(f'a turn is "from" {speaker!r} or has no "value"; use {", ".join(ROLES)}')
    return {"role": ROLES[speaker], "content": turn["value"]}


def load_template(tokenizer: Path) -> Callable[[list[dict[str, Any]]], str]:
    """Return what renders messages with the template of the tokenizer in this directory.

    Raises ConversationError if the directory has none; the result raises it for messages that the template
    refuses.
    """
    from transformers import PreTrainedTokenizerFast

    loaded = PreTrainedTokenizerFast.from_pretrained(str(tokenizer), local_files_only=True)
    if not loaded.chat_template:
        raise ConversationError(
            f"{tokenizer} has no chat template; add chat_template.jinja there, or use format: jsonl"
        )

    def render(messages: list[dict[str, Any]]) -> str:
        try:
            return str(loaded.apply_chat_template(messages, tokenize=False))
        except Exception as error:  # whatever a template of the user raises
            shown = json.dumps(messages, ensure_ascii=False)[:200]
            raise ConversationError(f"the chat template refuses {shown}: {error}") from error

    return render
