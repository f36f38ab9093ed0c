"""Tokenizer folders that data preparation refuses, and what it does not take from them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.data import tokenizer
from megatron_trainer.data.prepare import _run, build

from tests.unit.trainer.data.corpus import TEXTS, decoded, prepare, refusal, source, write
from tests.unit.trainer.data.source_files import options, write_source


def _tokenizer(folder: Path, tokenizer_dir: Path, **files: Any) -> Path:
    folder.mkdir()
    for path in tokenizer_dir.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def test_what_a_tokenizer_has_of_truncation_and_padding_is_not_applied(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    own = json.loads((tokenizer_dir / "tokenizer.json").read_text())
    own["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    own["padding"] = {
        "strategy": "BatchLongest",
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<|endoftext|>",
    }
    cutting = _tokenizer(tmp_path / "t", tokenizer_dir, tokenizer=own)
    found = source(tmp_path, write(tmp_path / "raw", "jsonl"))
    prepare(tmp_path, cutting, found)
    assert decoded(found.output, tokenizer_dir) == TEXTS


TOKENIZERS: dict[str, tuple[dict[str, Any], str]] = {
    "no end token": ({"tokenizer_config": {"eos_token": None}}, "data.prepare.appendEod: .* no eos_token"),
    "unknown end token": ({"tokenizer_config": {"eos_token": "<eos>"}}, "data.prepare.appendEod: "),
    "no object": ({"tokenizer_config": []}, "data.prepare.appendEod: "),
    "no tokenizer": ({"tokenizer": {}}, r"data.tokenizer.tokenizerModel: .*tokenizer.json cannot be read"),
}


@pytest.mark.parametrize(("files", "message"), TOKENIZERS.values(), ids=TOKENIZERS)
def test_a_tokenizer_that_cannot_be_used_is_refused_by_its_field(
    tmp_path: Path, tokenizer_dir: Path, files: dict[str, Any], message: str
) -> None:
    folder = _tokenizer(tmp_path / "t", tokenizer_dir, **files)
    text = refusal(tmp_path, folder, write(tmp_path / "raw", "jsonl"))
    assert re.match(message, text), text


def test_a_missing_tokenizer_is_named_and_none_is_offered_to_be_trained(tmp_path: Path) -> None:
    settings = write(tmp_path / "raw", "jsonl")
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "tokenizer.model").write_text("x")
    assert "has no tokenizer.json, it has tokenizer.model" in refusal(tmp_path, tmp_path / "t", settings)
    missing = refusal(tmp_path, tmp_path / "none", settings)
    assert "none is not a folder; copy the tokenizer there" in missing
    assert "to train one" not in missing


def test_the_end_token_is_found_where_transformers_reads_it(tmp_path: Path, tokenizer_dir: Path) -> None:
    files = {"tokenizer_config": {}, "special_tokens_map": {"eos_token": {"content": "<|endoftext|>"}}}
    folder = _tokenizer(tmp_path / "t", tokenizer_dir, **files)
    assert tokenizer.load(folder)[1] == tokenizer.load(tokenizer_dir)[1]


def of_folder(folder: Path, name: str, *extra: str) -> tuple[ExitCode, str]:
    """What the command for a folder of text, and a tokenizer of 300 entries, ends with."""
    made = folder / "data"
    words = ["--source", str(folder / "source"), "--include", "**/*.py", "--output-prefix", str(made / name)]
    words += ["--append-eod", "--tokenizer-dir", str(made / "tokenizer"), *extra]
    code, text, _ = _run(words)
    return code, text


TRAINED = ("--tokenizer-vocab-size", "300")


def test_a_tokenizer_that_another_recipe_has_left_and_the_model_is_too_small_for_is_refused(
    tmp_path: Path,
) -> None:
    build(options(write_source(tmp_path)))
    there = tokenizer.load(tmp_path / "data" / "tokenizer")[0].get_vocab_size()
    problem = f"the tokenizer in {tmp_path}/data/tokenizer has {there} token ids, and the model 270; "
    of_recipe = f"data.tokenizer.tokenizerModel: {problem}set model.vocabSize: {there}, or name another"
    shared = f"data.prepare.tokenizerVocabSize (--tokenizer-vocab-size): {problem}it is there already, "
    for trained, message in ((TRAINED, shared), ((), of_recipe)):
        code, text = of_folder(tmp_path, "other", *trained, "--vocab-size", "270")
        assert code == ExitCode.BAD_DATA
        assert text.startswith(message)
    assert of_folder(tmp_path, "other", *TRAINED, "--vocab-size", str(there))[0] == ExitCode.OK


def test_a_tokenizer_of_another_size_than_the_recipe_asks_for_is_reported(tmp_path: Path) -> None:
    write_source(tmp_path)
    code, text = of_folder(tmp_path, "code", "--tokenizer-vocab-size", "280")
    assert (code, "entries" in text) == (ExitCode.OK, False)
    _, text = of_folder(tmp_path, "other", *TRAINED)
    assert f"; the tokenizer that was in {tmp_path}/data/tokenizer already has 280 entries, not 300" in text
