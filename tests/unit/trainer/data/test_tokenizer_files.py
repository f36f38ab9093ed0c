"""Documents prepared with SentencePiece and tiktoken: the ids are those of the libraries and of Megatron."""

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.data.prepare import _run

from tests.unit.trainer.data.corpus import TEXTS, lines

SPECIAL = 20
MERGES = (b" the", b" quick", b" fox", b"document")


@pytest.fixture(scope="module")
def sentencepiece_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=48, minloglevel=2
    )
    path = tmp_path_factory.mktemp("sentencepiece") / "tokenizer.model"
    path.write_bytes(model.getvalue())
    return path


def tiktoken_vocabulary(folder: Path) -> Path:
    """A vocabulary in the form that Megatron reads: bytes, then what they are merged to."""
    tokens = [bytes([number]) for number in range(256)]
    for word in MERGES:
        tokens += [word[:end] for end in range(2, len(word) + 1) if word[:end] not in tokens]
    path = folder / "tokenizer.json"
    entries = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": token.decode("latin1")}
        for rank, token in enumerate(tokens)
    ]
    path.write_text(json.dumps(entries))
    return path


def prepare(
    folder: Path, tokenizer: Path, kind: str, *flags: str, own: tuple[str, ...] = ("--append-eod",)
) -> tuple[ExitCode, str]:
    """Run megatron-prepare with Megatron's flags of a run."""
    (folder / "a.jsonl").write_bytes(lines(TEXTS))
    output = folder / "out" / "corpus_text_document"
    source = {"path": f"{folder}/a.jsonl", "format": "jsonl", "output": str(output)}
    words = ["--sources", json.dumps([source]), "--output-dir", str(folder / "out")]
    words += ["--tokenizer-dir", str(tokenizer), "--workers", "2", *own]
    megatron = ["--tokenizer-type", kind, "--tokenizer-model", str(tokenizer), *flags]
    code, text, _ = _run([*words, "--", *megatron])
    return code, text


def prepared(folder: Path) -> list[list[int]]:
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    dataset = IndexedDataset(str(folder / "out" / "corpus_text_document"))
    assert dataset[0].dtype == np.uint16
    return [dataset[index].tolist() for index in range(len(dataset))]


@pytest.mark.parametrize("kind", ["SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer"])
def test_the_ids_are_those_of_sentencepiece(tmp_path: Path, sentencepiece_model: Path, kind: str) -> None:
    import sentencepiece

    assert prepare(tmp_path, sentencepiece_model, kind)[0] == ExitCode.OK
    library = sentencepiece.SentencePieceProcessor(model_file=str(sentencepiece_model))
    assert prepared(tmp_path) == [[*library.encode(text), library.eos_id()] for text in TEXTS]


@pytest.mark.parametrize("pattern", ["v1", "v2"])
def test_the_ids_are_those_of_tiktoken_after_the_special_tokens(tmp_path: Path, pattern: str) -> None:
    import tiktoken
    from megatron.core.tokenizers.text.libraries import tiktoken_tokenizer as megatron

    path = tiktoken_vocabulary(tmp_path)
    entries = json.loads(path.read_text())
    size = len(entries) + SPECIAL
    flags = ["--vocab-size", str(size), "--tiktoken-pattern", pattern]
    flags += ["--tiktoken-num-special-tokens", str(SPECIAL)]
    assert prepare(tmp_path, path, "TikTokenizer", *flags)[0] == ExitCode.OK
    library = tiktoken.Encoding(
        "own",
        pat_str={"v1": megatron._PATTERN_TIKTOKEN_V1, "v2": megatron._PATTERN_TIKTOKEN_V2}[pattern],
        mergeable_ranks={base64.b64decode(each["token_bytes"]): each["rank"] for each in entries},
        special_tokens={},
    )
    end = megatron.SPECIAL_TOKENS.index("</s>")
    expected = [[*(id + SPECIAL for id in library.encode(text)), end] for text in TEXTS]
    assert prepared(tmp_path) == expected


def test_a_flag_of_the_tokenizer_is_part_of_the_datasets_digest(tmp_path: Path) -> None:
    path = tiktoken_vocabulary(tmp_path)
    size = len(json.loads(path.read_text())) + SPECIAL
    flags = ["--vocab-size", str(size), "--tiktoken-num-special-tokens", str(SPECIAL)]
    assert prepare(tmp_path, path, "TikTokenizer", *flags, "--tiktoken-pattern", "v1")[0] == ExitCode.OK
    code, text = prepare(tmp_path, path, "TikTokenizer", *flags, "--tiktoken-pattern", "v2")
    assert code == ExitCode.BAD_DATA
    assert "or the tokenizer changed" in text


def refused(folder: Path, tokenizer: Path, kind: str, *flags: str, **options: Any) -> str:
    code, text = prepare(folder, tokenizer, kind, *flags, **options)
    assert code == ExitCode.BAD_DATA
    assert not list((folder / "out").glob("*.bin"))
    return text


LENGTH = ("--seq-length", "64", "--train-iters", "1", "--global-batch-size", "1", "--data-path", "x")


def test_more_ids_than_the_model_has_are_refused(tmp_path: Path, sentencepiece_model: Path) -> None:
    own = ("--append-eod", "--vocab-size", "40")
    text = refused(tmp_path, sentencepiece_model, "SentencePieceTokenizer", *LENGTH, own=own)
    assert "has 48 ids, and model.vocabSize is 40; set model.vocabSize: 48" in text


def test_a_vocabulary_smaller_than_the_models_is_refused_with_its_size(tmp_path: Path) -> None:
    path = tiktoken_vocabulary(tmp_path)
    count = len(json.loads(path.read_text()))
    text = refused(tmp_path, path, "TikTokenizer", "--vocab-size", "5000")
    assert (
        f"has {count} entries, {count + 1000:,} with 1,000 special tokens, and model.vocabSize is 5,000"
        in text
    )
    assert f"set model.vocabSize: {count + 1000}" in text


def test_a_tokenizer_without_an_end_token_is_refused(tmp_path: Path) -> None:
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=48, eos_id=-1, minloglevel=2
    )
    path = tmp_path / "tokenizer.model"
    path.write_bytes(model.getvalue())
    assert "data.prepare.appendEod: the tokenizer" in refused(tmp_path, path, "SentencePieceTokenizer")
    assert prepare(tmp_path, path, "SentencePieceTokenizer", own=())[0] == ExitCode.OK


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        ("SentencePieceTokenizer", b"no model", r"SentencePieceTokenizer cannot load"),
        ("SentencePieceTokenizer", None, r"does not exist; name the .model file of SentencePiece"),
        ("TikTokenizer", b"{", r"is not a list in JSON"),
        ("TikTokenizer", b'[{"rank": 1}]', r"has entries of another form; write \[\{rank, token_bytes"),
    ],
)
def test_a_file_of_another_form_is_refused(
    tmp_path: Path, kind: str, data: bytes | None, message: str
) -> None:
    path = tmp_path / "tokenizer.json"
    if data is not None:
        path.write_bytes(data)
    text = refused(tmp_path, path, kind)
    assert text.startswith("data.tokenizer.tokenizerModel: ")
    assert re.search(message, text), text


@pytest.mark.parametrize("kind", ["SentencePieceTokenizer", "TikTokenizer"])
def test_megatrons_own_loop_takes_the_tokenizer_and_the_dataset(
    tmp_path: Path, sentencepiece_model: Path, kind: str
) -> None:
    path, flags = sentencepiece_model, ["--padded-vocab-size", "64"]
    if kind == "TikTokenizer":
        path = tiktoken_vocabulary(tmp_path)
        size = len(json.loads(path.read_text())) + SPECIAL
        flags = ["--vocab-size", str(size), "--tiktoken-num-special-tokens", str(SPECIAL)]
    flags += ["--seq-length", "64", "--train-iters", "2", "--global-batch-size", "1"]
    flags += ["--eval-iters", "0", "--eval-interval", "10"]
    flags += ["--split", "100,0,0", "--data-cache-path", str(tmp_path / "cache")]
    flags += ["--data-path", str(tmp_path / "out" / "corpus_text_document")]
    code, text = prepare(tmp_path, path, kind, *flags, own=("--append-eod", "--index"))
    assert code == ExitCode.OK
    assert re.search(r"; [1-9]\d* new files of the index", text), text
