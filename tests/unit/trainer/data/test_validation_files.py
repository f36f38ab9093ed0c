"""A file that a run is evaluated on is not trained on, whatever pattern of another source matches it."""

from dataclasses import replace
from pathlib import Path

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.data import blend, chats, objects
from megatron_trainer.data.blend import Worker
from megatron_trainer.data.chat_check import ChatRun
from megatron_trainer.data.check import Needs
from megatron_trainer.data.dataset import Dataset
from megatron_trainer.data.objects import StoredObject
from megatron_trainer.data.preparation_error import PreparationError
from megatron_trainer.data.sources import Shard, Source
from megatron_trainer.data.validation_files import check_validation_files

from tests.unit.trainer.data.corpus import TEXTS, lines, source, with_template

SHARED = (
    r"sources\[1\]\.path: .*/held-out\.jsonl is matched by data\.sources\[0\]\.path too, "
    "which is trained on; narrow one of the two patterns"
)


@pytest.fixture
def found(tmp_path: Path) -> list[Source]:
    """A source to train on whose pattern matches all files, and one for validation with one of them."""
    for name in ("a", "b", "held-out"):
        (tmp_path / f"{name}.jsonl").write_bytes(lines(TEXTS[:40]))
    paths = {"trained": f"{tmp_path}/*.jsonl", "validation": f"{tmp_path}/held-out.jsonl"}
    each = [source(tmp_path, {"path": path, "format": "jsonl"}, name) for name, path in paths.items()]
    return [each[0], replace(each[1], name="data.sources[1]")]


def prepare(folder: Path, tokenizer: Path, found: list[Source]) -> None:
    trained, validation = (str(each.output) for each in found)
    needs = Needs(None, 8, 4, 99, "100,0,0", True, {trained: 1.0}, (validation,))
    blend.prepare(found, folder / "out", tokenizer, Worker(0, 1), append_eod=True, needs=needs)


def test_documents_for_validation_that_a_pattern_of_others_matches_are_refused(
    tmp_path: Path, tokenizer_dir: Path, found: list[Source]
) -> None:
    with pytest.raises(PreparationError, match=SHARED) as refused:
        prepare(tmp_path, tokenizer_dir, found)
    assert refused.value.code == ExitCode.BAD_DATA
    assert not list((tmp_path / "out").glob("objects/*/done.json"))


def test_documents_for_validation_that_no_other_pattern_matches_are_prepared(
    tmp_path: Path, tokenizer_dir: Path, found: list[Source]
) -> None:
    prepare(tmp_path, tokenizer_dir, [replace(found[0], path=f"{tmp_path}/?.jsonl"), found[1]])
    assert len(list((tmp_path / "out").glob("objects/*/done.json"))) == 2


def test_a_link_to_a_file_for_validation_is_that_file(
    tmp_path: Path, tokenizer_dir: Path, found: list[Source]
) -> None:
    (tmp_path / "c.jsonl").symlink_to("held-out.jsonl")
    trained = replace(found[0], path=f"{tmp_path}/?.jsonl")
    with pytest.raises(PreparationError, match=SHARED):
        prepare(tmp_path, tokenizer_dir, [trained, found[1]])


def test_what_is_fine_tuned_on_is_not_evaluated_on(
    tmp_path: Path, tokenizer_dir: Path, found: list[Source]
) -> None:
    folder = with_template(tokenizer_dir, tmp_path / "tokenizer")
    run = ChatRun(64, 4, 8, 99, "100,0", evaluates=True)
    with pytest.raises(PreparationError, match=SHARED):
        chats.prepare_chats(
            [found[0], replace(found[1], validation=True)],
            tmp_path / "out",
            tmp_path / "out" / "root",
            folder,
            Worker(0, 1),
            run,
        )


def test_an_object_that_two_patterns_match_is_refused(tmp_path: Path, found: list[Source]) -> None:
    listed = [StoredObject(objects.AWS, "corpus/held-out.jsonl", 8, "1") for _ in found]
    datasets = [
        Dataset(each, tmp_path, [Shard((file,), 8)], "") for each, file in zip(found, listed, strict=True)
    ]
    with pytest.raises(PreparationError, match=r"s3://corpus/held-out\.jsonl is matched by"):
        check_validation_files(datasets, {"data.sources[1]"})
