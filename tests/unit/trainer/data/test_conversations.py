"""Conversations: what a chat template gets, and records that it would lose."""

import json
from pathlib import Path
from typing import Any

import pytest
from megatron_trainer.data.chat import ConversationError, to_messages

from tests.unit.trainer.data.corpus import decoded, prepare, refusal, source, with_template

CHATS: dict[str, tuple[Any, str]] = {
    "no text": ({"messages": [{"role": "user"}]}, 'the message of user has no text as its "content"'),
    "null": ({"messages": [{"role": "user", "content": None}]}, "has no text as its"),
    "an answer not to be learned": (
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "weight": 0}]},
        'a message of assistant has "weight": 0, and the loss counts every answer as a whole; remove',
    ),
    "an answer of ShareGPT not to be learned": (
        {"conversations": [{"from": "gpt", "value": "y", "weight": 0.5}]},
        'a message of gpt has "weight": 0.5',
    ),
    "picture": ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 'only "text" is read'),
    "speaker": ({"conversations": [{"from": ["human"], "value": "x"}]}, "use human, gpt"),
    "system": ({"conversations": [{"from": "human", "value": "x"}], "system": 1}, '"system" is of type int'),
    "no system": (
        {"messages": [{"role": "user", "content": "x"}], "system": [1]},
        '"system" is of type list',
    ),
    "two systems": (
        {"messages": [{"role": "system", "content": "be kind"}], "system": "be brief"},
        'it has "system", and a message of system too; leave one of the two out',
    ),
    "two systems of ShareGPT": (
        {"conversations": [{"from": "system", "value": "be kind"}], "system": "be brief"},
        'it has "system", and a message of system too',
    ),
}


@pytest.mark.parametrize(("record", "message"), CHATS.values(), ids=CHATS)
def test_a_conversation_that_a_template_would_lose_is_refused(record: Any, message: str) -> None:
    with pytest.raises(ConversationError) as refused:
        to_messages(record)
    assert message in str(refused.value)


def test_a_conversation_keeps_its_system_prompt_its_parts_and_its_tools(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    records = [
        {"system": "be kind", "conversations": [{"from": "human", "value": "hi"}]},
        {"system": "be brief", "messages": [{"role": "user", "content": "hi"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": part} for part in ("a", "b")]}]},
        {"messages": [{"role": "user", "content": "c"}], "tools": [{"name": "clock"}]},
    ]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    folder = with_template(tokenizer_dir, tmp_path / "t")
    template = folder / "chat_template.jinja"
    template.write_text("{% if tools %}[{{ tools[0].name }}]{% endif %}" + template.read_text())
    found = source(tmp_path, {"path": f"{tmp_path}/c.jsonl", "format": "chat"})
    prepare(tmp_path, folder, found)
    expected = ["<system>be kind\n<user>hi\n", "<system>be brief\n<user>hi\n"]
    expected += ["<user>ab\n", "[clock]<user>c\n"]
    assert decoded(found.output, folder) == expected


def test_a_conversation_with_an_empty_list_of_tools_has_none(tmp_path: Path, tokenizer_dir: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    records = [chat | {"tools": tools} for tools in ([], "", None)]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    folder = with_template(tokenizer_dir, tmp_path / "t")
    template = folder / "chat_template.jinja"
    template.write_text("{% if tools is not none %}[tools]{% endif %}" + template.read_text())
    found = source(tmp_path, {"path": f"{tmp_path}/c.jsonl", "format": "chat"})
    prepare(tmp_path, folder, found)
    assert decoded(found.output, folder) == ["<user>hi\n"] * 3


def test_weights_that_change_nothing_are_taken() -> None:
    messages = [
        {"role": "user", "content": "x", "weight": 0},
        {"role": "assistant", "content": "y", "weight": 1},
        {"role": "assistant", "content": "z", "weight": None},
    ]
    assert to_messages({"messages": messages}) == messages


def test_a_bad_conversation_is_named_with_its_line(tmp_path: Path, tokenizer_dir: Path) -> None:
    good = json.dumps({"messages": [{"role": "user", "content": "c"}]})
    (tmp_path / "c.jsonl").write_text(f"{good}\n\n{{}}\n")
    folder = with_template(tokenizer_dir, tmp_path / "t")
    text = refusal(tmp_path, folder, {"path": f"{tmp_path}/c.jsonl", "format": "chat"})
    assert 'c.jsonl:3: the record has neither "messages" nor "conversations"' in text
