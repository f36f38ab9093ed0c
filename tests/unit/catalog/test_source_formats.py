"""The format of `data.sources` where it is not set."""

from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.api.status import Plan
from megatron_operator.api.validation import parse_spec
from megatron_operator.catalog import load
from megatron_operator.catalog.sources import source_errors, with_formats
from megatron_operator.cli.default_platform import default_platform
from megatron_operator.planner import PlannedRun, admit


def formats(*sources: dict[str, Any], fine_tunes: bool = False) -> list[str | None]:
    spec = {"recipe": "any", "accelerator": {"count": 1}, "data": {"sources": list(sources)}}
    found, _ = with_formats(MegatronRecipeSpec.model_validate(spec), fine_tunes=fine_tunes)
    assert found.data is not None
    return [source.format for source in found.data.sources or []]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/docs.parquet", "parquet"),
        ("/data/raw/**/*.parquet", "parquet"),
        ("/data/book.txt", "text"),
        ("/data/*.txt.zst", "text"),
        ("/data/web.jsonl", None),
        ("/data/docs.parquet.gz", None),
        ("/data/saved", None),
        ("/data/docs.json", None),
    ],
)
def test_a_suffix_names_the_format_or_leaves_it_open(path: str, kind: str | None) -> None:
    assert formats({"path": path}) == [kind]


def test_lines_with_a_key_are_text_and_those_of_fine_tuning_chats() -> None:
    assert formats({"path": "/data/web.jsonl.gz", "key": "body"}) == ["jsonl"]
    assert formats({"path": "/data/chats.jsonl.gz"}, fine_tunes=True) == ["chat"]


def test_a_format_that_is_set_stays() -> None:
    assert formats({"path": "/data/notes.txt", "format": "jsonl"}) == ["jsonl"]


@pytest.mark.parametrize(
    ("path", "kind", "text"),
    [
        ("/data/images/*.tar.gz", "webdataset", "is compressed: samples are read within tar files"),
        ("/data/images/a.tgz", "webdataset", "is compressed: samples are read within tar files"),
        ("/data/web/*.tar.gz", "text", "is an archive; unpack it, and name the files in it"),
        ("/data/web.tgz", "jsonl", "is an archive; unpack it, and name the files in it"),
        ("/data/docs.tar.zst", "parquet", "is an archive; unpack it, and name the files in it"),
        ("/data/docs.parquet.zst", "parquet", "is compressed as a whole, which no Parquet file is"),
        ("s3://corpus/web/*.jsonl.XZ", "jsonl", "is not plain, .gz or .zst; compress it with gzip or zstd"),
        ("/data/chats.zip", "chat", "is not plain, .gz or .zst; unpack it"),
        ("/data/chats.parquet", "chat", "is Parquet, and chats are JSON lines"),
        ("/data/docs.parquet", "text", "text does not read '/data/docs.parquet'; set parquet"),
    ],
)
def test_a_suffix_that_no_reader_of_the_format_takes_is_refused(path: str, kind: str, text: str) -> None:
    [error] = source_errors({"path": path, "format": kind}, "spec.data.sources[0]", media="images")
    assert text in str(error)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/web.jsonl.gz", "jsonl"),
        ("/data/chats.zst", "chat"),
        ("/data/docs.gz.parquet", "parquet"),
        ("/data/images/*.tar", "webdataset"),
        ("/data/raw/*", "text"),
        ("/data/saved.zip", "hf"),
    ],
)
def test_a_suffix_that_may_be_read_is_left_to_the_preparation(path: str, kind: str) -> None:
    assert source_errors({"path": path, "format": kind}, "spec.data.sources[0]", media="images") == []


def test_a_tar_file_of_text_is_refused_and_a_run_that_was_admitted_with_one_goes_on() -> None:
    def admitted(path: str, previous: Plan | None = None) -> PlannedRun:
        tokenizer = {"tokenizerType": "HuggingFaceTokenizer", "tokenizerModel": "/data/tokenizer"}
        source = {"path": path, "format": "text"}
        data = {"sources": [source], "volume": {"size": "1Ti"}, "tokenizer": tokenizer}
        spec = {"recipe": "llama3-8b", "accelerator": {"type": "h100-sxm", "count": 8}, "data": data}
        return admit("run", parse_spec(spec), default_platform(), load(), previous=previous)

    problem = "'/data/web.tar' is an archive; unpack it, and name the files in it"
    with pytest.raises(InvalidRecipeError) as refused:
        admitted("/data/web.tar")
    assert [str(error) for error in refused.value.errors] == [f"spec.data.sources[0].path: {problem}"]
    kept = admitted("/data/web.tar", admitted("/data/web.txt").plan)
    assert f"data.sources[0].path: {problem}" in kept.warnings


def test_a_suffix_that_no_format_reads_asks_for_no_format() -> None:
    source = {"path": "/data/images.tar.bz2"}
    spec = {"recipe": "any", "accelerator": {"count": 1}, "data": {"sources": [source]}}
    _, errors = with_formats(MegatronRecipeSpec.model_validate(spec), fine_tunes=True, media="images")
    assert [(error.field, error.fix) for error in errors] == [
        ("spec.data.sources[0].path", "decompress it, and name the .tar files")
    ]


def test_an_unknown_recipe_is_not_also_refused_for_a_format_that_it_leaves_open() -> None:
    spec = {"recipe": "llama3.1-8b-dpo", "accelerator": {"count": 8}}
    spec["data"] = {"volume": {"claimName": "c"}, "sources": [{"path": "/data/c/*.jsonl"}]}
    with pytest.raises(InvalidRecipeError) as refused:
        admit("run", parse_spec(spec), default_platform(), load())
    assert [error.field for error in refused.value.errors] == ["spec.recipe"]
