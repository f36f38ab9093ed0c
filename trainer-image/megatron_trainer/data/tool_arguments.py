"""Arguments of tool calls: text with JSON in OpenAI's form, objects for most chat templates."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from megatron_trainer.data.chat import ConversationError
from megatron_trainer.data.documents import Render


def as_template_reads(
    messages: list[dict[str, Any]], tools: list[Any] | None, render: Render
) -> list[dict[str, Any]]:
    """Return the messages, with objects as arguments where the template would encode text once more.

    Templates that take text, or both, get what was written. Raises ConversationError for text that is not the
    JSON of an object.
    """
    texts = [text for message in messages for text in _texts(message)]
    if not texts:
        return messages
    parsed = [_with_objects(message) for message in messages]
    try:
        shown = render(messages, tools)
    except ConversationError:
        return parsed
    encoded = [json.dumps(text, ensure_ascii=ascii_only) for text in texts for ascii_only in (False, True)]
    if not any(each in shown for each in encoded):
        return messages
    try:
        render(parsed, tools)
    except ConversationError:
        return messages
    return parsed


def _functions(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict) and isinstance(function := call.get("function"), dict):
            yield function


def _texts(message: Mapping[str, Any]) -> Iterator[str]:
    for function in _functions(message):
        if isinstance(text := function.get("arguments"), str):
            yield text


def _with_objects(message: dict[str, Any]) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(message))
    for function in _functions(copy):
        if isinstance(text := function.get("arguments"), str):
            function["arguments"] = _parsed(function, text)
    return copy


def _parsed(function: Mapping[str, Any], text: str) -> dict[str, Any]:
    problem = f"the arguments of a call of {function.get('name')!r}"
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConversationError(f"{problem} are not JSON: {error}; correct them") from error
    if not isinstance(found, dict):
        raise ConversationError(f"{problem} are of type {type(found).__name__}, not an object; correct them")
    return found
