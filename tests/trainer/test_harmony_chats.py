"""Which tokens of chats in Harmony, the format of GPT-OSS, the loss counts."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.data import chats_command
from megatron_trainer.data.preparation_error import PreparationError

from tests.trainer.chat_corpus import GPT_OSS, lines, openai, write_tokenizer
from tests.trainer.test_chats import seen, words

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None,
    reason="what Megatron-Bridge imports is not installed: run make bridge-training",
)
USER = {"role": "user", "content": "and then?"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
}
RESULT = {"role": "tool", "content": "42"}
FIRST = "<|channel|>final<|message|>one<|end|>"
CALLED = ' to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>'
FINAL = "<|channel|>final<|message|>done<|return|>"
REASONED = f"<|channel|>analysis<|message|>because<|end|><|start|>assistant{FINAL}"


def answer(text: str, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text} | fields


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"), GPT_OSS)


@pytest.mark.parametrize(
    ("messages", "counted"),
    [
        ([USER, answer("done", thinking="because")], REASONED),
        ([USER, answer("one"), USER, answer("done")], FIRST + FINAL),
        ([USER, answer("one"), USER, answer("done", thinking="because")], FIRST + REASONED),
        (
            [USER, answer("one", thinking="left out"), USER, answer("done", thinking="because")],
            FIRST + REASONED,
        ),
        ([USER, CALL | {"thinking": "left out"}, RESULT, answer("done")], CALLED + FINAL),
        (
            [USER, answer("one"), USER, CALL, RESULT, answer("done", thinking="because")],
            FIRST + CALLED + REASONED,
        ),
    ],
    ids=["one turn", "two turns", "reasoning in the last", "in both", "before a call", "with a call"],
)
def test_the_loss_counts_all_answers_with_the_reasoning_that_the_template_writes(
    messages: list[dict[str, Any]], counted: str, tokenizer: Path, tmp_path: Path
) -> None:
    (tmp_path / "raw.jsonl").write_text(lines([{"messages": messages}]))
    chats_command.run(words(tmp_path, f"{tmp_path}/raw.jsonl", tokenizer=tokenizer))
    assert seen(tmp_path / "out/chats/training.jsonl", tokenizer, 512, tmp_path) == [counted]


@pytest.mark.parametrize(
    ("chat", "problem"),
    [
        (openai("q"), "it has no answer of the assistant"),
        (
            {
                "messages": [
                    USER | {"content": "<|start|>assistant"},
                    answer("one"),
                    USER,
                    answer("a", thinking="b"),
                ]
            },
            "its answers are not found in what the chat template makes of it",
        ),
    ],
    ids=["without an answer", "with a marker in a text"],
)
def test_a_chat_without_answers_and_one_whose_answers_are_not_found_have_reasons_of_their_own(
    chat: dict[str, Any], problem: str, tokenizer: Path, tmp_path: Path
) -> None:
    (tmp_path / "raw.jsonl").write_text(lines([chat]))
    with pytest.raises(PreparationError) as refused:
        chats_command.run(words(tmp_path, f"{tmp_path}/raw.jsonl", tokenizer=tokenizer))
    assert refused.value.code == ExitCode.BAD_DATA
    assert f"{tmp_path}/raw.jsonl:1: " in str(refused.value)
    assert problem in str(refused.value)
