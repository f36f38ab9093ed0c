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
ALL = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"

SYSTEM = [{"role": "system", "content": "be brief"}]
ASKED = [{"role": "user", "content": "hi"}]
ANSWER = [{"role": "assistant", "content": "yes"}]
CALL = [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}]
RESULT = [{"role": "tool", "content": "42"}]

LOST: dict[str, tuple[str, list[dict[str, Any]], str]] = {
    "system": (TWO_ROLES, [*SYSTEM, *ASKED, *ANSWER], "the message of system"),
    "a later system": (FIRST_ALONE, [*SYSTEM, *ASKED, *SYSTEM, *ANSWER], "the message of system"),
    "tool": (TWO_ROLES, [*ASKED, *RESULT, *ANSWER], "the message of tool"),
    "calls": (ALL, [*ASKED, *CALL, *RESULT, *ANSWER], "the tool_calls of a message of assistant"),
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
    assert f"c.jsonl:2: the chat template leaves out {what}; remove the line" in text


SHOWN: dict[str, tuple[str, list[dict[str, Any]], str]] = {
    "in the first turn": (FOLDS, [*SYSTEM, *ASKED], "<user>be briefhi"),
    "instead of a default": (DEFAULT + ALL, [*SYSTEM, *ASKED], "<system>be brief<user>hi"),
    "a default alone": (DEFAULT + ALL, ASKED, "<system>be kind<user>hi"),
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
