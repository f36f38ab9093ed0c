"""Finds what a chat template leaves out of a conversation without an error: it would not be learned."""

from collections.abc import Iterator
from typing import Any, Final

from megatron_trainer.data.chat import ConversationError
from megatron_trainer.data.documents import Render
from megatron_trainer.data.tool_arguments import as_template_reads

_ALWAYS_SHOWN: Final = frozenset({"user", "assistant"})


def check_left_out(
    messages: list[dict[str, Any]], tools: list[Any] | None, render: Render, text: str | None = None
) -> None:
    """Raise ConversationError unless the text of messages depends on each role and each tool call.

    A template may also show a message elsewhere, as Gemma's shows the system's in the user's first turn.
    `text` is what was rendered of them, if that is known.
    """
    for index, part in _parts(messages):
        message = messages[index]
        text = render(messages, tools) if text is None else text
        if part == "tool_calls":
            other = {name: value for name, value in message.items() if name != part}
        else:
            other = message | {"content": "+" if message.get("content") == "-" else "-"}
        try:
            changed = render([*messages[:index], other, *messages[index + 1 :]], tools)
        except ConversationError:
            continue
        if changed == text:
            what = "tool_calls of a message" if part == "tool_calls" else "message"
            raise ConversationError(
                f"the chat template leaves out the {what} of {message['role']}; remove the line, or use "
                f"a template that has {'tool calls' if part == 'tool_calls' else 'this role'}"
            )


def _parts(messages: list[dict[str, Any]]) -> Iterator[tuple[int, str]]:
    """What a template may leave out, as the index of the message and the key."""
    for index, message in enumerate(messages):
        role = message["role"]
        # Of an empty system message nothing can be lost.
        if role not in _ALWAYS_SHOWN and (role != "system" or (message.get("content") or "").strip()):
            yield index, "content"
        if message.get("tool_calls"):
            yield index, "tool_calls"


class CheckedTemplate:
    """Renders conversations. Of those with the same order of roles one is checked for what is left out."""

    def __init__(self, render: Render) -> None:
        """Check what this renders."""
        self._render = render
        self._checked = set[frozenset[tuple[str, str, str]]]()

    def __call__(self, messages: list[dict[str, Any]], tools: list[Any] | None) -> str:
        """Return the text of a conversation. Raises ConversationError."""
        messages = as_template_reads(messages, tools, self._render)
        text = self._render(messages, tools)
        kinds = frozenset(
            (messages[index - 1]["role"] if index else "", messages[index]["role"], part)
            for index, part in _parts(messages)
        )
        if kinds and kinds not in self._checked:
            check_left_out(messages, tools, self._render, text)
            self._checked.add(kinds)
        return text
