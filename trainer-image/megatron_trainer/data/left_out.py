"""Finds what a chat template leaves out of a conversation without an error: it would not be learned."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from megatron_trainer.data.chat import ConversationError
from megatron_trainer.data.documents import Render
from megatron_trainer.data.tool_arguments import as_template_reads

_ALWAYS_SHOWN: Final = frozenset({"user", "assistant"})
_CALLS: Final = "tool_calls"
_REASONING: Final = ("reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True)
class _Part:
    """What a template may leave out of the message at `index`: a key of it, or the tool call at `call`."""

    index: int
    key: str
    call: int | None = None


def check_left_out(
    messages: list[dict[str, Any]], tools: list[Any] | None, render: Render, text: str | None = None
) -> None:
    """Raise ConversationError unless the text of messages depends on each role, tool call and reasoning.

    A template may also show a message elsewhere, as Gemma's shows the system's in the user's first turn.
    `text` is what was rendered of them, if that is known.
    """
    for part in _parts(messages):
        message = messages[part.index]
        before, after = messages[: part.index], messages[part.index + 1 :]
        try:
            if part.key in _REASONING:
                # Templates leave out that of earlier turns on purpose.
                after = []
                shown = render([*before, message], tools)
            else:
                shown = text = render(messages, tools) if text is None else text
            changed = render([*before, _without(part, message), *after], tools)
        except ConversationError:
            continue
        if changed == shown:
            what, fix = _described(part, message)
            raise ConversationError(f"the chat template leaves out {what} of {message['role']}; {fix}")


def _parts(messages: list[dict[str, Any]]) -> Iterator[_Part]:
    """What a template may leave out."""
    reasoning = dict[str, _Part]()
    for index, message in enumerate(messages):
        role, calls, content = message["role"], message.get(_CALLS), (message.get("content") or "").strip()
        # Of an empty system message nothing can be lost.
        if (content and calls) or (role not in _ALWAYS_SHOWN and (role != "system" or content)):
            yield _Part(index, "content")
        if calls:
            yield _Part(index, _CALLS)
            for call in range(len(calls) if isinstance(calls, list) and len(calls) > 1 else 0):
                yield _Part(index, _CALLS, call)
        if role == "assistant":
            reasoning |= {key: _Part(index, key) for key in _REASONING if _has_apart(message, key, content)}
    yield from reasoning.values()


def _has_apart(message: dict[str, Any], key: str, content: str) -> bool:
    """Whether a message has reasoning that its content does not have too."""
    text = message.get(key)
    return isinstance(text, str) and bool(text.strip()) and text.strip() not in content


def _without(part: _Part, message: dict[str, Any]) -> dict[str, Any]:
    if part.call is not None:
        return message | {_CALLS: [call for at, call in enumerate(message[_CALLS]) if at != part.call]}
    if part.key == "content":
        return message | {"content": "+" if (message.get("content") or "").strip() == "-" else "-"}
    # A message may have one reasoning under several names, of which a template reads one.
    names = {name for name in _REASONING if message.get(name) == message[part.key]} | {part.key}
    return {name: value for name, value in message.items() if name not in names}


def _described(part: _Part, message: dict[str, Any]) -> tuple[str, str]:
    """Return what is left out, and what to do about it."""
    if part.call is not None:
        what = f"tool call {part.call + 1} of {len(message[_CALLS])} of a message"
        return what, "give each call a message of its own, or use a template that has several"
    if part.key == _CALLS:
        return f"the {_CALLS} of a message", "remove the line, or use a template that has tool calls"
    if part.key != "content" or message.get(_CALLS):
        beside = f" beside {_CALLS}" if part.key == "content" else ""
        fix = f"remove this {part.key}, or use a template that has it"
        return f"the {part.key}{beside} of a message", fix
    return "the message", "remove the line, or use a template that has this role"


class CheckedTemplate:
    """Renders conversations. Of those with the same order of roles one is checked for what is left out."""

    def __init__(self, render: Render) -> None:
        """Check what this renders."""
        self._render = render
        self._checked = set[frozenset[tuple[str, str, str, int | None]]]()

    def __call__(self, messages: list[dict[str, Any]], tools: list[Any] | None) -> str:
        """Return the text of a conversation. Raises ConversationError."""
        messages = as_template_reads(messages, tools, self._render)
        text = self._render(messages, tools)
        kinds = frozenset(
            (
                messages[part.index - 1]["role"] if part.index else "",
                messages[part.index]["role"],
                part.key,
                part.call,
            )
            for part in _parts(messages)
        )
        if kinds and kinds not in self._checked:
            check_left_out(messages, tools, self._render, text)
            self._checked.add(kinds)
        return text
