"""Arguments of tool calls in the text of a conversation, whatever form the template takes."""

import json
from pathlib import Path

import pytest

from tests.unit.trainer.data.corpus import decoded, prepare, refusal, source, with_template

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}{% for call in m.tool_calls or [] %}"
    "{% set arguments = call.function.arguments %}ARGUMENTS{% endfor %}{% endfor %}"
)
SHOWN = {
    "of objects": ("{{ arguments | tojson }}", '{"city": "Zürich"}'),
    "of keys": ("{% for key, value in arguments.items() %}{{ key }}={{ value }}{% endfor %}", "city=Zürich"),
    "of text": ("{{ '[' + arguments + ']' }}", '[{"city":"Zürich"}]'),
    "of both": (
        "{{ arguments if arguments is string else arguments | tojson }}",
        '{"city":"Zürich"}',
    ),
}


def write_chats(folder: Path, tokenizer_dir: Path, arguments: str, shown: str) -> Path:
    """Write a question with a call of a tool to c.jsonl, and the tokenizer with a template."""
    call = {"type": "function", "function": {"name": "weather", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "warm?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    (folder / "c.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    tokenizer = with_template(tokenizer_dir, folder / "t")
    (tokenizer / "chat_template.jinja").write_text(TEMPLATE.replace("ARGUMENTS", shown))
    return tokenizer


@pytest.mark.parametrize(("shown", "expected"), SHOWN.values(), ids=SHOWN)
def test_arguments_that_are_text_are_encoded_once(
    shown: str, expected: str, tmp_path: Path, tokenizer_dir: Path
) -> None:
    tokenizer = write_chats(tmp_path, tokenizer_dir, '{"city":"Zürich"}', shown)
    found = source(tmp_path, {"path": f"{tmp_path}/c.jsonl", "format": "chat"})
    prepare(tmp_path, tokenizer, found)
    assert decoded(found.output, tokenizer) == [f"<user>warm?<assistant>{expected}"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("city: Bern", "are not JSON: Expecting value"),
        ("", "are not JSON"),
        ('["Bern"]', "are of type list, not an object"),
    ],
)
def test_arguments_that_are_no_object_are_named_with_their_line(
    arguments: str, problem: str, tmp_path: Path, tokenizer_dir: Path
) -> None:
    tokenizer = write_chats(tmp_path, tokenizer_dir, arguments, "{{ arguments | tojson }}")
    text = refusal(tmp_path, tokenizer, {"path": f"{tmp_path}/c.jsonl", "format": "chat"})
    assert f"c.jsonl:1: the arguments of a call of 'weather' {problem}" in text
