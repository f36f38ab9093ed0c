"""With `documents: N` only the first N of a source matter, whatever worker reads the others."""

from pathlib import Path
from typing import Any

import pytest
from megatron_trainer.data import documents

from tests.unit.trainer.data.corpus import TEXTS, decoded, lines, prepare, refusal, source, write

pytestmark = pytest.mark.usefixtures("small_shards")


def test_what_is_wrong_behind_the_limit_ends_no_worker(tmp_path: Path, tokenizer_dir: Path) -> None:
    settings = write(tmp_path / "raw", "jsonl") | {"documents": 50}
    (tmp_path / "raw" / "b.jsonl").write_bytes(lines(TEXTS[120:]) + b"oops\n")
    found = source(tmp_path, settings)
    for index in (1, 0):
        prepare(tmp_path, tokenizer_dir, found, index=index, count=2)
    assert decoded(found.output, tokenizer_dir) == TEXTS[:50]


def test_what_is_wrong_before_the_limit_ends_the_worker_that_joins(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    settings = write(tmp_path / "raw", "jsonl") | {"documents": 190}
    (tmp_path / "raw" / "b.jsonl").write_bytes(lines(TEXTS[120:150]) + b"oops\n" + lines(TEXTS[150:]))
    prepare(tmp_path, tokenizer_dir, source(tmp_path, settings), index=1, count=2)
    assert "b.jsonl:31 is not one line of JSON" in refusal(tmp_path, tokenizer_dir, settings)


def test_shards_that_others_complete_meanwhile_count_before_a_wrong_line(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = write(tmp_path / "raw", "jsonl") | {"documents": 50}
    (tmp_path / "raw" / "b.jsonl").write_bytes(lines(TEXTS[120:]) + b"oops\n")
    found = source(tmp_path, settings)
    parse = documents._parse

    def others_are_faster(*args: Any) -> Any:
        """Another worker completes the shards before this one while it is at the wrong line."""
        if args[2].startswith(b"oops"):
            monkeypatch.setattr(documents, "_parse", parse)
            prepare(tmp_path, tokenizer_dir, found, index=2, count=3)
        return parse(*args)

    monkeypatch.setattr(documents, "_parse", others_are_faster)
    for index in (1, 0):
        prepare(tmp_path, tokenizer_dir, found, index=index, count=2)
    assert decoded(found.output, tokenizer_dir) == TEXTS[:50]
