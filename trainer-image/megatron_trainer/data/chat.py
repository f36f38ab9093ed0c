"""Conversations, in OpenAI's and ShareGPT's forms, as text of the tokenizer's chat template."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from megatron_trainer.errors import TrainerError
from megatron_trainer.read_errors import is_temporary

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
    """Return the messages of a record with `messages` or `conversations`. Raises ConversationError.

    A record may have the system's message in `system`.
    """
    if not isinstance(record, dict):
        raise ConversationError("the record is not an object")
    if "messages" in record:
        messages = record["messages"]
        if not isinstance(messages, list) or not messages:
            raise ConversationError('"messages" is not a list of messages')
        return _with_system(record, [_checked(message) for message in messages])
    turns = record.get("conversations")
    if not isinstance(turns, list) or not turns:
        raise ConversationError(
            'the record has neither "messages" nor "conversations"; write {"messages": [{"role": "user",'
            ' "content": "..."}, {"role": "assistant", "content": "..."}]}, or, to fine-tune, name a folder'
            ' of {"input": "...", "output": "..."} lines in data.datasetRoot'
        )
    return _with_system(record, [_message(turn) for turn in turns])


def _with_system(record: Mapping[str, Any], messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    system = system_of(record, messages)
    return [{"role": "system", "content": system}, *messages] if system else messages


def system_of(record: Mapping[str, Any], messages: Iterable[Mapping[str, Any]]) -> str:
    """Return the system's message that a record has beside its `messages`, "" for none.

    Raises ConversationError for one that is no text, and for a record that has one among its messages too.
    """
    system = record.get("system") or ""
    if not isinstance(system, str):
        raise ConversationError(f'"system" is of type {type(system).__name__}, not a string')
    if system and any(message["role"] == "system" for message in messages):
        raise ConversationError('it has "system", and a message of system too; leave one of the two out')
    return system


def require_whole_weight(turn: Mapping[str, Any]) -> None:
    """Raise ConversationError for an answer that is not to be learned, or less than others (`weight`)."""
    speaker, weight = turn.get("role", turn.get("from")), turn.get("weight")
    if ROLES.get(str(speaker)) == "assistant" and weight not in (None, 1):
        raise ConversationError(
            f'a message of {speaker} has "weight": {weight}, and the loss counts every answer as a whole; '
            'remove "weight", or the message'
        )


def _checked(message: Any) -> dict[str, Any]:
    """A message of OpenAI's form. A template would leave out silently what is missing or of another kind."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ConversationError('a message has no "role"')
    require_whole_weight(message)
    content = message.get("content")
    if isinstance(content, list):
        kinds = [part.get("type") if isinstance(part, dict) else None for part in content]
        if not content or any(kind != "text" for kind in kinds):
            raise ConversationError(f'a message has parts of types {kinds}; only "text" is read')
        if not all(isinstance(part.get("text"), str) for part in content):
            raise ConversationError('a part of a message has no "text"')
        return message | {"content": "".join(part["text"] for part in content)}
    if not isinstance(content, str) and not (content is None and message.get("tool_calls")):
        raise ConversationError(f'the message of {message["role"]} has no text as its "content"')
    return message


def _message(turn: Any) -> dict[str, Any]:
    speaker = turn.get("from") if isinstance(turn, dict) else None
    if not isinstance(speaker, str) or speaker not in ROLES or not isinstance(turn.get("value"), str):
        raise ConversationError(f'a turn is "from" {speaker!r} or has no "value"; use {", ".join(ROLES)}')
    require_whole_weight(turn)
    return {"role": ROLES[speaker], "content": turn["value"]}


def load_template(tokenizer: Path) -> Callable[[list[dict[str, Any]], list[Any] | None], str]:
    """Return what renders messages, and tools, with the template of the tokenizer in this directory.

    Raises ConversationError if the directory has none, and what a volume raises that cannot be read for a
    while; the result raises ConversationError for messages that the template refuses.
    """
    from transformers import PreTrainedTokenizerFast

    try:
        loaded = PreTrainedTokenizerFast.from_pretrained(str(tokenizer), local_files_only=True)
    except Exception as error:  # of many kinds
        if is_temporary(error):
            raise
        raise ConversationError(f"transformers cannot load {tokenizer}: {error}") from error
    if not loaded.chat_template:
        raise ConversationError(
            f"{tokenizer} has no chat template, as most base models; add chat_template.jinja there, "
            "for example that of the model's instruct version"
        )

    def render(messages: list[dict[str, Any]], tools: list[Any] | None = None) -> str:
        try:
            return str(loaded.apply_chat_template(messages, tools=tools, tokenize=False))
        except Exception as error:  # whatever a template of the user raises
            shown = json.dumps(messages, ensure_ascii=False)[:200]
            raise ConversationError(f"the chat template refuses {shown}: {error}") from error

    return render
