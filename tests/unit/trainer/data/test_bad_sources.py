"""What users have on a volume by mistake: each is refused with its place and the fix, or read as meant."""

import gzip
import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.data import blend, documents, shards, sources, sources_command
from megatron_trainer.data.blend import Worker
from megatron_trainer.data.preparation_error import PreparationError
from megatron_trainer.data.prepare import _run

from tests.unit.trainer.data.corpus import (
    TEXTS,
    decoded,
    lines,
    prepare,
    refusal,
    source,
    write,
)

GOOD = b'{"text": "a good document"}\n'


def zst(data: bytes) -> bytes:
    import zstandard

    return zstandard.compress(data)


LINES: dict[str, tuple[str, bytes, str]] = {
    "missing key": (
        "f",
        GOOD * 2 + b'{"body": "x", "id": 1}\n',
        r"\.key: .*/f:3 has no \"text\", it has body, id; set",
    ),
    "no object": ("f", GOOD + b"[1]\n", r"\.path: .*/f:2 is not a JSON object; write each line as"),
    "number": ("f", GOOD + b'{"text": 5}\n', r"\.key: \"text\" at .*/f:2 is of type int, not a string"),
    "utf-8": ("f", GOOD + b'{"text": "\xff"}\n', r"\.path: .*/f:2 is not UTF-8 at byte 10; convert it"),
    "half a pair": ("f", GOOD + b'{"text": "\\ud83d"}\n', r"\.path: .*/f:2 has \\ud83d without .*replace it"),
    "deep": ("f", GOOD + b"[" * 100_000 + b"\n", r"\.path: .*/f:2 is not one line of JSON"),
    "in gzip": (
        "f.gz",
        gzip.compress(GOOD * 3 + b"{}\n"),
        r"\.key: .*/f.gz:4 has no .text., it has no keys",
    ),
    "in zstd": ("f.zst", zst(GOOD) + zst(GOOD + b"{}\n"), r"\.key: .*/f.zst:3 has no \"text\""),
    "cut zstd": ("f.zst", zst(GOOD * 50)[:-5], r"\.path: .*/f.zst is not whole.*; copy it again"),
    "cut second frame": ("f.zst", zst(GOOD) + zst(GOOD * 50)[:-5], r"\.path: .*/f.zst is not whole"),
    "empty gzip": ("f.gz", b"", r"\.path: .*/f.gz is not whole, .*: it is empty; copy"),
    "empty zstd": ("f.zst", b"", r"\.path: .*/f.zst is not whole, .*: it is empty; copy"),
    "unnamed gzip": ("f", gzip.compress(GOOD), r"\.path: .*/f:1 is a gzip file; name it .gz"),
    "unnamed zstd": ("f", zst(GOOD), r"\.path: .*/f:1 is a zstd file; name it .zst"),
    "bzip2": ("f.bz2", b"BZh91AY&SY\x00", r"\.path: .*/f.bz2:1 is a bzip2 file; compress it with gzip"),
    "blank": ("f", b"\n\n  \n" + b'{"text": " "}\n{"text": null}\n', r"\.path: .* contain no text"),
}


@pytest.mark.parametrize(("name", "data", "message"), LINES.values(), ids=LINES)
def test_a_line_that_cannot_be_read_is_named_with_the_fix(
    tmp_path: Path, tokenizer_dir: Path, name: str, data: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(data)
    text = refusal(tmp_path, tokenizer_dir, {"path": f"{tmp_path}/{name}", "format": "jsonl"})
    assert re.search(r"^data\.sources\[0\]" + message, text), text


@pytest.mark.usefixtures("small_shards")
def test_the_line_is_counted_from_the_start_of_the_file_in_every_shard(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    (tmp_path / "f").write_bytes(lines(TEXTS) + b"oops\n" + lines(TEXTS))
    text = refusal(tmp_path, tokenizer_dir, {"path": f"{tmp_path}/f", "format": "jsonl"})
    assert f"{tmp_path}/f:{len(TEXTS) + 1} is not one line of JSON" in text


@pytest.mark.parametrize("name", ["f", "f.gz", "f.zst"])
def test_a_line_without_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(documents, "LONGEST_DOCUMENT", 1 << 20)
    data = GOOD + b'{"text": "' + b"x" * (3 << 20)
    packed = {"f": data, "f.gz": gzip.compress(data), "f.zst": zst(data)}[name]
    (tmp_path / name).write_bytes(packed)
    text = refusal(tmp_path, tokenizer_dir, {"path": f"{tmp_path}/{name}", "format": "jsonl"})
    assert f"{name}:2 is longer than 1 MiB; divide the document" in text


def test_a_text_file_that_grows_when_it_is_unpacked_is_refused(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (documents, sources):
        monkeypatch.setattr(module, "LONGEST_DOCUMENT", 1 << 20)
    (tmp_path / "f.gz").write_bytes(gzip.compress(b"x" * (2 << 20)))
    text = refusal(tmp_path, tokenizer_dir, {"path": f"{tmp_path}/f.gz", "format": "text"})
    assert "f.gz is longer than 1 MiB" in text
    assert "convert it to JSON lines" in text


def test_a_text_that_is_not_utf_8_is_named_with_its_line(tmp_path: Path, tokenizer_dir: Path) -> None:
    (tmp_path / "f").write_bytes(b"one\ntwo \xe9\n")
    text = refusal(tmp_path, tokenizer_dir, {"path": f"{tmp_path}/f", "format": "text"})
    assert f"{tmp_path}/f:2 is not UTF-8 text; convert it" in text


def test_null_and_empty_documents_are_left_out_of_every_format(tmp_path: Path, tokenizer_dir: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = ["one", None, "", " \n", "two"]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    for kind in ("jsonl", "parquet"):
        found = source(tmp_path, {"path": f"{tmp_path}/a.{kind}", "format": kind}, f"{kind}_text_document")
        prepare(tmp_path, tokenizer_dir, found)
        assert decoded(found.output, tokenizer_dir) == ["one", "two"]


def test_a_byte_order_mark_is_no_text(tmp_path: Path, tokenizer_dir: Path) -> None:
    for kind, data in (("text", b"one"), ("jsonl", b'{"text": "one"}\n')):
        (tmp_path / kind).write_bytes(b"\xef\xbb\xbf" + data)
        found = source(tmp_path, {"path": f"{tmp_path}/{kind}", "format": kind}, f"{kind}_text_document")
        prepare(tmp_path, tokenizer_dir, found)
        assert decoded(found.output, tokenizer_dir) == ["one"]


def _folder(at: Path) -> None:
    (at / "raw").mkdir()
    (at / "raw" / "a.txt").write_text("text")


PATHS: dict[str, tuple[str, str]] = {
    "a folder": ("raw", r"raw is a folder; name its files: .*raw/\*"),
    "no match": ("raw/*.jsonl", r"no file matches .*; .*raw has a.txt; correct the path"),
    "no folder": ("row/x/*.jsonl", r"no file matches .*; .*/row does not exist; copy the files"),
    "no file": ("raw/b.txt", r"no file matches .*; .*raw has a.txt"),
    "bad pattern": ("raw/**x", r"raw/\*\*x is not a pattern: .*; write \*\* alone|no file matches"),
}


@pytest.mark.parametrize(("path", "message"), PATHS.values(), ids=PATHS)
def test_a_path_without_files_is_refused_with_what_is_there(
    tmp_path: Path, tokenizer_dir: Path, path: str, message: str
) -> None:
    _folder(tmp_path)
    text = refusal(tmp_path, tokenizer_dir, {"path": f"{tmp_path}/{path}", "format": "jsonl"})
    assert re.search(message, text), text


def test_copies_in_progress_are_no_documents_and_a_name_with_brackets_is(
    tmp_path: Path,
) -> None:
    (tmp_path / "raw[1]").mkdir()
    (tmp_path / "raw[1]" / "a.jsonl").write_bytes(lines(["one"]))
    found = source(tmp_path, {"path": f"{tmp_path}/raw[1]/a.jsonl", "format": "jsonl"})
    assert [path.name for path in sources.find_files(found)] == ["a.jsonl"]
    (tmp_path / "b").mkdir()
    for name in ("a.jsonl", "._a.jsonl", ".b.jsonl.Xy12"):
        (tmp_path / "b" / name).write_bytes(lines(["one"]))
    found = source(tmp_path, {"path": f"{tmp_path}/b/*", "format": "jsonl"})
    assert [path.name for path in sources.find_files(found)] == ["a.jsonl"]
    found = source(tmp_path, {"path": f"{tmp_path}/b/.*", "format": "jsonl"})
    assert len(sources.find_files(found)) == 2


def test_a_file_that_may_not_be_read_is_named_as_such(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(GOOD)
    real = Path.open

    def denied(path: Path, *args: Any, **more: Any) -> Any:
        if path.name == "f":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **more)

    monkeypatch.setattr(Path, "open", denied)  # root may read everything
    text = refusal(tmp_path, tokenizer_dir, {"path": f"{tmp_path}/f", "format": "jsonl"})
    assert f"{tmp_path}/f cannot be read; make it readable for user {os.getuid()}" in text


def _arrow_cut_between_batches(folder: Path) -> None:
    """As a copy that ends early: its reader takes the first batch for the whole file."""
    import pyarrow as pa

    path = folder / "data-0.arrow"
    data, buffer = path.read_bytes(), path.read_bytes()
    for end in range(8, len(data), 8):
        try:
            with pa.ipc.open_stream(data[:end]) as stream:
                if stream.read_all().num_rows == 40:
                    buffer = data[:end]
                    break
        except (pa.ArrowInvalid, OSError):
            continue
    assert buffer != data
    path.write_bytes(buffer)


def _arrow_cut(folder: Path) -> None:
    path = folder / "data-1.arrow"
    path.write_bytes(path.read_bytes()[:-100])


def _selected(folder: Path) -> None:
    path = folder / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"_indices_data_files": [{"filename": "i"}]}))


def _numbers(folder: Path) -> None:
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": 5}]}))


def _no_splits(folder: Path) -> None:
    (folder / "dataset_dict.json").write_text("{}")


FOLDERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut": (_arrow_cut, "data-1.arrow is not whole"),
    "cut between batches": (_arrow_cut_between_batches, "data-0.arrow is not whole"),
    "selection": (_selected, "call flatten_indices() before save_to_disk"),
    "numbers": (_numbers, "lacks 5, which its state.json names"),
    "no splits": (_no_splits, "has several splits; name one: none is there"),
}


@pytest.mark.parametrize(("spoil", "message"), FOLDERS.values(), ids=FOLDERS)
def test_a_dataset_folder_that_is_not_whole_is_refused(
    tmp_path: Path, tokenizer_dir: Path, spoil: Callable[[Path], None], message: str
) -> None:
    settings = write(tmp_path / "raw", "hf")
    spoil(tmp_path / "raw")
    assert message in refusal(tmp_path, tokenizer_dir, settings)


def test_a_parquet_file_with_damaged_pages_is_refused_by_name(tmp_path: Path, tokenizer_dir: Path) -> None:
    settings = write(tmp_path / "raw", "parquet")
    path = tmp_path / "raw" / "a.parquet"
    data = path.read_bytes()
    path.write_bytes(data[:4] + b"\xff" * 300 + data[304:])
    assert "a.parquet is not whole, or not of this format" in refusal(tmp_path, tokenizer_dir, settings)


def test_a_parquet_file_with_a_damaged_footer_is_refused_by_name(tmp_path: Path, tokenizer_dir: Path) -> None:
    settings = write(tmp_path / "raw", "parquet")
    path = tmp_path / "raw" / "a.parquet"
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    path.write_bytes(data[: -8 - length] + b"\xff" * length + data[-8:])
    text = refusal(tmp_path, tokenizer_dir, settings)
    assert re.search(r"^data\.sources\[0\]\.path: .*a\.parquet is not whole, or not .*; copy it again$", text)


@pytest.mark.parametrize("kind", ["parquet", "hf"])
def test_a_file_of_another_user_is_named_before_any_is_read(kind: str) -> None:
    own = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        settings = write(Path(name) / "raw", kind)
        for path in (Path(name) / "raw").iterdir():
            path.chmod(0o644 if path.suffix == ".json" else 0)
        if own == 0:
            os.seteuid(65534)
        try:
            found = source(Path(name), settings)
            with pytest.raises(PreparationError, match=r"^data\.sources\[0\]\.path: .* cannot be read; make"):
                sources.divide(found, sources.find_files(found))
        finally:
            os.seteuid(own)


def test_what_may_not_be_opened_is_never_named_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_: object) -> Any:
        raise PermissionError(13, "Failed to open local file")

    monkeypatch.setattr(sources_command, "run", denied)
    code, text, _ = _run(["--sources", "[]"])
    fix = f"let user {os.geteuid()} read the sources, and write to the data volume"
    assert (code, text) == (ExitCode.BAD_DATA, f"[Errno 13] Failed to open local file; {fix}")


def test_every_parquet_file_is_checked_for_the_column_before_any_is_read(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    settings = write(tmp_path / "raw", "parquet") | {"path": f"{tmp_path}/raw/*.parquet"}
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "raw" / "z.parquet")
    monkeypatch.setattr(blend, "read_documents", lambda *_: pytest.fail("a document was read"))
    assert "z.parquet has no column content; it has text" in refusal(tmp_path, tokenizer_dir, settings)


def test_a_column_of_categories_is_text(tmp_path: Path, tokenizer_dir: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": pa.array(["one", "two"]).dictionary_encode()}), tmp_path / "a.parquet")
    found = source(tmp_path, {"path": f"{tmp_path}/a.parquet", "format": "parquet"})
    prepare(tmp_path, tokenizer_dir, found)
    assert decoded(found.output, tokenizer_dir) == ["one", "two"]


def test_files_that_change_while_they_are_prepared_are_refused(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = write(tmp_path / "raw", "jsonl")
    read = blend.read_documents

    def appends(*args: Any) -> Any:
        with (tmp_path / "raw" / "b.jsonl").open("ab") as stream:
            stream.write(b"\n" + GOOD)
        return read(*args)

    monkeypatch.setattr(blend, "read_documents", appends)
    assert "changed while they were prepared; wait until" in refusal(tmp_path, tokenizer_dir, settings)


@pytest.mark.parametrize("suffix", ["bin", "idx"])
def test_a_dataset_whose_file_was_cut_or_removed_is_prepared_again(
    tmp_path: Path, tokenizer_dir: Path, suffix: str
) -> None:
    found = source(tmp_path, write(tmp_path / "raw", "jsonl"))
    before = prepare(tmp_path, tokenizer_dir, found)
    [path] = (tmp_path / "out").glob(f"objects/*/data.{suffix}")
    path.write_bytes(path.read_bytes()[:-8])
    assert prepare(tmp_path, tokenizer_dir, found) == before
    path.unlink()
    assert prepare(tmp_path, tokenizer_dir, found) == before


@pytest.mark.usefixtures("small_shards")
def test_shards_that_a_node_lost_with_its_power_are_built_again(tmp_path: Path, tokenizer_dir: Path) -> None:
    found = source(tmp_path, write(tmp_path / "raw", "jsonl"))
    prepare(tmp_path, tokenizer_dir, found, index=1, count=2)
    [work] = (tmp_path / "out").glob("objects/*/shards-*")
    (work / "000001.tokens").write_bytes(b"")
    (work / "000003.lengths").write_bytes(b"")
    (work / "000004.tokens").unlink()
    prepare(tmp_path, tokenizer_dir, found, count=2)
    assert decoded(found.output, tokenizer_dir) == TEXTS


def test_a_full_volume_is_an_error_of_the_volume(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shards, "flush", full)
    settings = write(tmp_path / "raw", "jsonl") | {"output": str(tmp_path / "out" / "c_text_document")}
    words = ["--sources", json.dumps([settings]), "--output-dir", str(tmp_path / "out")]
    code, text, _ = _run([*words, "--tokenizer-dir", str(tokenizer_dir)])
    assert (code, text.partition(";")[0]) == (
        ExitCode.BAD_DATA,
        "spec.data.volume: no space is left on the data volume",
    )


def test_two_sources_with_the_same_files_are_both_in_the_mix(tmp_path: Path, tokenizer_dir: Path) -> None:
    settings = write(tmp_path / "raw", "jsonl")
    found = [source(tmp_path, settings, f"{name}_text_document") for name in "ab"]
    blend.prepare(found, tmp_path / "out", tokenizer_dir, Worker(0, 1), append_eod=True)
    assert [decoded(each.output, tokenizer_dir) for each in found] == [TEXTS, TEXTS]
