"""Documents among what to fine-tune on are made again for a tokenizer with another end token."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.bridge.chat_tokens import IDS
from megatron_trainer.data import chats
from megatron_trainer.data.blend import Worker
from megatron_trainer.data.chat_check import ChatRun
from megatron_trainer.data.preparation_error import PreparationError
from megatron_trainer.data.sources import Source

from tests.unit.trainer.data.corpus import TEXTS, source, with_template, write

RUN = ChatRun(64, 4, 8, 99, "100,0", evaluates=False)
CHANGED = "the tokenizer or the vocabulary of the model changed since this dataset was prepared"


@pytest.fixture
def tokenizer(tmp_path: Path, tokenizer_dir: Path) -> Path:
    """A tokenizer with a second token that may end documents."""
    folder = with_template(tokenizer_dir, tmp_path / "tokenizer")
    own = json.loads((folder / "tokenizer.json").read_text())
    first = own["added_tokens"][0]
    own["added_tokens"].append(first | {"id": max(own["model"]["vocab"].values()) + 1, "content": "<end>"})
    (folder / "tokenizer.json").write_text(json.dumps(own))
    return folder


def end_with(tokenizer: Path, token: str) -> int:
    """Have documents end with a token; returns its id."""
    config = tokenizer / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"eos_token": token}))
    own = json.loads((tokenizer / "tokenizer.json").read_text())
    return next(int(each["id"]) for each in own["added_tokens"] if each["content"] == token)


@pytest.fixture
def documents(tmp_path: Path) -> Source:
    return source(tmp_path, write(tmp_path / "raw", "text"))


def prepare(documents: Source, tokenizer: Path, name: str, run: ChatRun = RUN) -> list[int]:
    """Prepare documents; returns the last token of each sample."""
    root = documents.output.with_name(name)
    chats.prepare_chats([documents], root.parent, root, tokenizer, Worker(0, 1), run)
    return [json.loads(line)[IDS][-1] for line in (root / "training.jsonl").open()]


def test_documents_end_with_the_end_token_that_the_tokenizer_has_now(
    documents: Source, tokenizer: Path
) -> None:
    before = end_with(tokenizer, "<|endoftext|>")
    assert before in prepare(documents, tokenizer, "before")
    after = end_with(tokenizer, "<end>")
    with pytest.raises(PreparationError, match=CHANGED):
        prepare(documents, tokenizer, "before")
    ends = prepare(documents, tokenizer, "after")
    assert ends.count(after) == len(TEXTS)
    assert before not in ends


def test_the_samples_of_a_model_with_another_vocabulary_have_another_name(
    documents: Source, tokenizer: Path
) -> None:
    """Recipes of two models may share the sources, the folder of a tokenizer and the length."""
    prepare(documents, tokenizer, "small", replace(RUN, vocab_size=50_000))
    with pytest.raises(PreparationError, match=CHANGED):
        prepare(documents, tokenizer, "small", replace(RUN, vocab_size=60_000))
    assert prepare(documents, tokenizer, "large", replace(RUN, vocab_size=60_000))


def test_an_end_token_that_transformers_reads_otherwise_is_refused(
    documents: Source, tokenizer: Path
) -> None:
    end = end_with(tokenizer, "<end>")
    (tokenizer / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    with pytest.raises(PreparationError, match=f"is {end}, but 0 for transformers") as refused:
        prepare(documents, tokenizer, "documents")
    assert refused.value.code == ExitCode.BAD_DATA


def test_chats_that_an_earlier_release_prepared_are_found(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text("{}")
    run = ChatRun(128, 4, 8, 1, "98,2", evaluates=False, vocab_size=1000)
    of_chats = Source("data.sources[0]", "*.jsonl", "chat", tmp_path / "out")
    digest = chats._digest(of_chats, tmp_path, run, "98,2", None)
    assert digest == "b7d81e91f868e6c3447541f28666ed4b0f5486692a60e6c9884b0773fcb8711e"
