"""Sources of all formats through the real megatron-prepare, read back with Megatron's own reader."""

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.data import blend, documents, sources, tokenizer
from megatron_trainer.data.preparation_error import PreparationError

from testkit.waiting import wait_until
from tests.unit.trainer.data.corpus import (
    TEXTS,
    decoded,
    lines,
    prepare,
    source,
    with_template,
    write,
)


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("kind", ["jsonl", "gz", "zst", "text", "parquet", "hf"])
def test_each_format_gives_its_documents_in_order(tmp_path: Path, tokenizer_dir: Path, kind: str) -> None:
    found = source(tmp_path, write(tmp_path / "raw", kind))
    prepare(tmp_path, tokenizer_dir, found)
    assert decoded(found.output, tokenizer_dir) == TEXTS


@pytest.mark.usefixtures("small_shards")
def test_the_files_are_those_of_megatrons_own_builder(tmp_path: Path, tokenizer_dir: Path) -> None:
    import torch
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

    files = prepare(tmp_path, tokenizer_dir, source(tmp_path, write(tmp_path / "raw", "jsonl")))
    loaded, eod = tokenizer.load(tokenizer_dir)
    builder = IndexedDatasetBuilder(str(tmp_path / "own.bin"), dtype=DType.optimal_dtype(400))
    for text in TEXTS:
        ids = [*loaded.encode(text, add_special_tokens=False).ids, eod]
        builder.add_document(torch.tensor(ids), [len(ids)])
    builder.finalize(str(tmp_path / "own.idx"))
    assert [*files.values()] == [(tmp_path / f"own.{kind}").read_bytes() for kind in ("bin", "idx")]


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("limit", [1, 77, 1000])
def test_a_limit_takes_the_first_documents_whatever_worker_reads_them(
    tmp_path: Path, tokenizer_dir: Path, limit: int
) -> None:
    found = source(tmp_path, write(tmp_path / "raw", "parquet") | {"documents": limit})
    prepare(tmp_path, tokenizer_dir, found, index=1, count=2)
    prepare(tmp_path, tokenizer_dir, found, count=2)
    assert decoded(found.output, tokenizer_dir) == TEXTS[:limit]


CHATS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]},
    {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yes"}]},
]


@pytest.mark.parametrize("chat", CHATS, ids=["openai", "sharegpt"])
def test_a_conversation_is_the_text_of_the_chat_template(
    tmp_path: Path, tokenizer_dir: Path, chat: dict[str, Any]
) -> None:
    (tmp_path / "c.jsonl").write_text(json.dumps(chat) + "\n")
    found = source(tmp_path, {"path": f"{tmp_path}/c.jsonl", "format": "chat"})
    folder = with_template(tokenizer_dir, tmp_path / "tokenizer")
    prepare(tmp_path, folder, found)
    assert decoded(found.output, folder) == ["<user>hi\n<assistant>yes\n"]


def command(
    folder: Path, tokenizer_dir: Path, settings: dict[str, Any], index: int
) -> subprocess.Popen[bytes]:
    text = json.dumps([settings | {"output": str(folder / "out" / "corpus_text_document")}])
    start = "from megatron_trainer.data import sources; sources.SHARD_BYTES = 1500; "
    start += "from megatron_trainer.data.prepare import main; main()"
    words = ["--sources", text, "--output-dir", str(folder / "out"), "--tokenizer-dir", str(tokenizer_dir)]
    environment = os.environ | {
        "JOB_COMPLETION_INDEX": str(index),
        "MEGATRON_TERMINATION_LOG": str(folder / f"end-{index}"),
    }
    return subprocess.Popen(
        [sys.executable, "-c", start, *words, "--append-eod", "--pods", "2", "--workers", "1"],
        env=environment,
        stdout=subprocess.DEVNULL,
    )


def test_a_killed_worker_leaves_no_trace_in_the_result(tmp_path: Path, tokenizer_dir: Path) -> None:
    settings = write(tmp_path / "raw", "jsonl")
    for path in (tmp_path / "raw").iterdir():
        path.write_bytes(path.read_bytes().rstrip(b"\n") + b"\n" + lines(TEXTS * 2))
    victim = command(tmp_path, tokenizer_dir, settings, 0)
    work = tmp_path / "out" / "objects"
    wait_until(
        "three shards",
        lambda: victim.poll() is not None or len([*work.glob("*/shards-*/*.lengths")]) >= 3,
        interval=0.01,
    )
    assert victim.poll() is None, "it was killed while it had work left"
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    for index in (1, 0):
        assert command(tmp_path, tokenizer_dir, settings, index).wait() == 0
    end = json.loads((tmp_path / "end-0").read_text())
    again = tmp_path / "again"
    alone = prepare(again, tokenizer_dir, source(again, settings))
    killed = {path.name: path.read_bytes() for path in sorted((tmp_path / "out").glob("*_text_document.*"))}
    assert killed == alone
    assert end["documents"] == len(decoded(again / "out" / "corpus_text_document", tokenizer_dir))
    [kept] = work.iterdir()
    *made, settings = sorted(path.name for path in kept.iterdir())
    assert made == ["data.bin", "data.idx", "done.json"]
    assert settings.startswith("source-")


class Killed(BaseException):
    """The worker ends here."""


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("at", range(0, 34, 3))
def test_a_worker_may_end_before_any_rename(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    found = source(tmp_path, write(tmp_path / "raw", "jsonl") | {"documents": 110})
    replace, calls = Path.replace, iter(range(1000))

    def ends(path: Path, target: Path) -> Path:
        if next(calls) == at:
            raise Killed
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", ends)
        with pytest.raises(Killed):
            prepare(tmp_path, tokenizer_dir, found)
    prepare(tmp_path, tokenizer_dir, found)
    assert decoded(found.output, tokenizer_dir) == TEXTS[:110]


def test_what_is_prepared_is_not_prepared_again_and_shared_by_another_name(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = write(tmp_path / "raw", "jsonl")
    first = source(tmp_path, settings)
    prepare(tmp_path, tokenizer_dir, first)
    monkeypatch.setattr(blend, "read_documents", lambda *_: pytest.fail("a document was read again"))
    prepare(tmp_path, tokenizer_dir, first)
    other = source(tmp_path, settings, "other_text_document")
    prepare(tmp_path, tokenizer_dir, other)
    assert (
        Path(f"{other.output}.bin").resolve()
        == Path(f"{first.output}.bin").resolve()
        != Path(f"{other.output}.bin")
    )


def test_changed_files_do_not_change_a_dataset_that_a_run_reads(tmp_path: Path, tokenizer_dir: Path) -> None:
    found = source(tmp_path, write(tmp_path / "raw", "jsonl"))
    before = prepare(tmp_path, tokenizer_dir, found)
    (tmp_path / "raw" / "c.jsonl").write_bytes(lines(["more"]))
    with pytest.raises(
        PreparationError, match=r"sources\[0\]\.path: the files .*another data\.prepare\.name"
    ):
        prepare(tmp_path, tokenizer_dir, found)
    assert {p.name: p.read_bytes() for p in sorted((tmp_path / "out").glob("*_text_document.*"))} == before


REFUSED: dict[str, tuple[dict[str, Any], bytes, str]] = {
    "no file": ({"path": "none", "format": "jsonl"}, b"", r"sources\[0\]\.path: no file matches .*none"),
    "no json": (
        {"path": "f", "format": "jsonl"},
        b'{"text": "a"}\nb\n',
        r"f:2 is not one line of JSON",
    ),
    "no key": (
        {"path": "f", "format": "jsonl"},
        b'{"body": "a"}\n',
        r'\.key: .*f:1 has no "text", it has body',
    ),
    "truncated": ({"path": "f.gz", "format": "jsonl"}, gzip.compress(lines(TEXTS))[:-9], "is not whole"),
    "no zstd": ({"path": "f.zst", "format": "jsonl"}, b"abcdefgh" * 4, "is not whole"),
    "no utf-8": ({"path": "f", "format": "text"}, b"\xff\xfe\x80", "is not UTF-8 text"),
    "no gzip": ({"path": "f.gz", "format": "text"}, b"abcdefgh", "f.gz is not whole, or not"),
    "empty": ({"path": "f", "format": "text"}, b"\n", "contain no text"),
    "no parquet": ({"path": "f", "format": "parquet"}, b"abcd" * 8, "is not a Parquet file"),
    "no folder": ({"path": "f", "format": "hf"}, b"", "is not a folder"),
    "no template": ({"path": "f", "format": "chat"}, b"{}\n", r"\.format: .* has no chat template"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_read_is_refused_by_its_field(
    tmp_path: Path, tokenizer_dir: Path, case: tuple[dict[str, Any], bytes, str]
) -> None:
    settings, data, message = case
    if settings["path"] != "none":
        (tmp_path / settings["path"]).write_bytes(data)
    found = source(tmp_path, settings | {"path": f"{tmp_path}/{settings['path']}"})
    with pytest.raises(PreparationError, match=message) as refused:
        prepare(tmp_path, tokenizer_dir, found)
    assert refused.value.code == ExitCode.BAD_DATA


def test_a_column_that_is_missing_or_no_text_is_refused_with_the_columns(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    settings = write(tmp_path / "raw", "parquet")
    for key, message in (("body", r"no column body; it has content, id"), ("id", "id of .* is int64")):
        with pytest.raises(PreparationError, match=rf"\.column: .*{message}"):
            prepare(tmp_path, tokenizer_dir, source(tmp_path, settings | {"key": key}))


def test_a_shard_has_no_line_twice_and_none_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = write(tmp_path / "raw", "jsonl")
    for size in range(1, 400, 7):
        monkeypatch.setattr(sources, "SHARD_BYTES", size * 10)
        found = source(tmp_path, settings)
        divided = sources.divide(found, sources.find_files(found))
        assert [t for shard in divided for t in documents.read_documents(found, shard)] == TEXTS


def test_a_row_group_is_read_by_pieces(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = [os.urandom(2048).hex() for _ in range(8000)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", use_dictionary=False)
    found = source(tmp_path, {"path": f"{tmp_path}/a.parquet", "format": "parquet"})
    [shard] = sources.divide(found, sources.find_files(found))
    before = pa.total_allocated_bytes()
    held = [pa.total_allocated_bytes() - before for _ in documents.read_documents(found, shard)]
    assert len(held) == len(texts)
    assert max(held) < shard.size / 2
