"""What chat templates leave out of conversations without an error."""

import json
from pathlib import Path
from typing import Any

import pytest
from megatron_trainer.data import left_out
from megatron_trainer.data.chat import ConversationError
from megatron_trainer.data.left_out import CheckedTemplate

from tests.unit.trainer.data.corpus import decoded, prepare, refusal, source, with_template

TWO_ROLES = (
    "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}<{{ m.role }}>{{ m.content }}{% endif %}"
    "{% endfor %}"
)
FOLDS = (
    "{% if messages[0].role == 'system' %}{% set first = messages[0].content %}"
    "{% set messages = messages[1:] %}{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{% if loop.first %}{{ first }}{% endif %}{{ m.content }}"
    "{% endfor %}"
)
FIRST_ALONE = (
    "{% for m in messages %}{% if loop.first or m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}"
)
DEFAULT = "{% if messages[0].role != 'system' %}<system>be kind{% endif %}"
FIRST_CALL = (
    "{% for m in messages %}<{{ m.role }}>{% if 'tool_calls' in m %}{{ m.tool_calls[0].function.name }}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
"""As Llama 3.1's."""
LAST_REASONING = (
    "{% for m in messages %}<{{ m.role }}>{% if loop.last and m.reasoning_content %}"
    "({{ m.reasoning_content }}){% endif %}{{ m.content }}"
    "{% for call in m.tool_calls %}[{{ call.function.name }}]{% endfor %}{% endfor %}"
)
"""As those of Qwen3 and GPT-OSS, which leave out the reasoning of earlier messages."""
ALL = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"

SYSTEM = [{"role": "system", "content": "be brief"}]
ASKED = [{"role": "user", "content": "hi"}]
ANSWER = [{"role": "assistant", "content": "yes"}]
CALL = [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}]
BESIDE = [CALL[0] | {"content": "let me look"}]
TWO_CALLS = [CALL[0] | {"tool_calls": [{"function": {"name": name, "arguments": {}}} for name in "fg"]}]
REASONED = [ANSWER[0] | {"reasoning_content": "because"}]
RESULT = [{"role": "tool", "content": "42"}]

LOST: dict[str, tuple[str, list[dict[str, Any]], str]] = {
    "system": (TWO_ROLES, [*SYSTEM, *ASKED, *ANSWER], "the message of system; remove the line"),
    "a later system": (
        FIRST_ALONE,
        [*SYSTEM, *ASKED, *SYSTEM, *ANSWER],
        "the message of system; remove the line",
    ),
    "tool": (TWO_ROLES, [*ASKED, *RESULT, *ANSWER], "the message of tool; remove the line"),
    "content beside a call": (
        FIRST_CALL,
        [*ASKED, *BESIDE, *RESULT, *ANSWER],
        "the content beside tool_calls of a message of assistant; remove this content",
    ),
    "the second of two calls": (
        FIRST_CALL,
        [*ASKED, *TWO_CALLS, *RESULT, *ANSWER],
        "tool call 2 of 2 of a message of assistant; give each call a message of its own",
    ),
    "reasoning": (
        ALL,
        [*ASKED, *REASONED],
        "the reasoning_content of a message of assistant; remove this reasoning_content",
    ),
    "reasoning of an earlier answer alone": (
        ALL,
        [*ASKED, *REASONED, *ASKED, *ANSWER],
        "the reasoning_content of a message of assistant; remove this reasoning_content",
    ),
    "reasoning by another name": (
        ALL,
        [*ASKED, ANSWER[0] | {"thinking": "because"}],
        "the thinking of a message of assistant; remove this thinking",
    ),
    "calls": (
        ALL,
        [*ASKED, *CALL, *RESULT, *ANSWER],
        "the tool_calls of a message of assistant; remove the line",
    ),
}


@pytest.mark.parametrize(("template", "messages", "what"), LOST.values(), ids=LOST)
def test_a_conversation_of_which_the_template_leaves_out_a_part_is_refused(
    template: str, messages: list[dict[str, Any]], what: str, tmp_path: Path, tokenizer_dir: Path
) -> None:
    folder = with_template(tokenizer_dir, tmp_path / "t")
    (folder / "chat_template.jinja").write_text(template)
    records = [{"messages": [*ASKED, *ANSWER]}, {"messages": messages}]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    text = refusal(tmp_path, folder, {"path": f"{tmp_path}/c.jsonl", "format": "chat"})
    assert f"c.jsonl:2: the chat template leaves out {what}" in text


SHOWN: dict[str, tuple[str, list[dict[str, Any]], str]] = {
    "in the first turn": (FOLDS, [*SYSTEM, *ASKED], "<user>be briefhi"),
    "instead of a default": (DEFAULT + ALL, [*SYSTEM, *ASKED], "<system>be brief<user>hi"),
    "a default alone": (DEFAULT + ALL, ASKED, "<system>be kind<user>hi"),
    "a call without content": (FIRST_CALL, [*ASKED, *CALL, *ANSWER], "<user>hi<assistant>f<assistant>yes"),
    "two calls": (
        LAST_REASONING,
        [*ASKED, *[TWO_CALLS[0] | {"content": "let me look"}], *ANSWER],
        "<user>hi<assistant>let me look[f][g]<assistant>yes",
    ),
    "reasoning of the last answer": (
        LAST_REASONING,
        [*ASKED, *REASONED, *ASKED, *REASONED],
        "<user>hi<assistant>yes<user>hi<assistant>(because)yes",
    ),
    "reasoning before a call": (
        LAST_REASONING,
        [*ASKED, CALL[0] | {"reasoning_content": "because"}, *RESULT, *ANSWER],
        "<user>hi<assistant>[f]<tool>42<assistant>yes",
    ),
    "one reasoning by two names": (
        LAST_REASONING,
        [*ASKED, REASONED[0] | {"reasoning": "because"}],
        "<user>hi<assistant>(because)yes",
    ),
    "reasoning that the content has": (
        ALL,
        [*ASKED, REASONED[0] | {"content": "<think>because</think>yes"}],
        "<user>hi<assistant><think>because</think>yes",
    ),
    "an empty system": (TWO_ROLES, [{"role": "system", "content": " "}, *ASKED], "<user>hi"),
}


@pytest.mark.parametrize(("template", "messages", "text"), SHOWN.values(), ids=SHOWN)
def test_what_a_template_shows_elsewhere_is_not_left_out(
    template: str, messages: list[dict[str, Any]], text: str, tmp_path: Path, tokenizer_dir: Path
) -> None:
    folder = with_template(tokenizer_dir, tmp_path / "t")
    (folder / "chat_template.jinja").write_text(template)
    (tmp_path / "c.jsonl").write_text(json.dumps({"messages": messages}))
    found = source(tmp_path, {"path": f"{tmp_path}/c.jsonl", "format": "chat"})
    prepare(tmp_path, folder, found)
    assert decoded(found.output, folder) == [text]


def test_conversations_with_the_same_order_of_roles_are_checked_once() -> None:
    rendered = []

    def render(messages: list[dict[str, Any]], _: object) -> str:
        rendered.append(messages)
        return json.dumps(messages)

    template = CheckedTemplate(render)
    for _ in range(3):
        template([*SYSTEM, *ASKED], None)
    assert len(rendered) == 4


def test_a_message_whose_change_the_template_refuses_is_not_left_out() -> None:
    def render(messages: list[dict[str, Any]], _: object) -> str:
        if messages[0] not in SYSTEM:
            raise ConversationError("refused")
        return "text"

    left_out.check_left_out([*SYSTEM, *ASKED], None, render, "text")
