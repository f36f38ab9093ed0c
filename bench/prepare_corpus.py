"""Corpora for `make bench-prepare`: the sources of Python's standard library, repeated, in each format."""

import gzip
import json
import sysconfig
from collections.abc import Iterator
from itertools import batched, cycle
from pathlib import Path
from typing import Any, Final

FORMATS: Final = ("jsonl", "chat", "gz", "zst", "text", "parquet", "hf", "wide", "longest")
"""`wide`: JSON lines of which an eighth is text, and the rest a field that is not read; `longest`: JSON lines
with documents of nearly the most that one may have."""
_VOCABULARY: Final = 8192
_LONGEST: Final = 15 << 20
_WIDTH: Final = 7
_TEMPLATE: Final = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
_ROWS: Final = 1000
"""Rows of a batch, as `save_to_disk` writes them."""


def _texts() -> list[str]:
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-z]*/*.py"))
    texts = (file.read_text(encoding="utf-8", errors="ignore") for file in files)
    return [text for text in texts if text.strip()]


def _repeated[T: (str, bytes)](parts: list[T], size: int) -> Iterator[T]:
    """At least `size` characters or bytes, again from the first part where they do not suffice."""
    written = 0
    for part in cycle(parts):
        if written >= size:
            return
        yield part
        written += len(part)


def train(folder: Path) -> None:
    """Train a tokenizer with a chat template on the first 4 MiB."""
    from megatron_trainer.data import tokenizer

    tokenizer.train(_repeated(_texts(), 4 << 20), _VOCABULARY, folder)
    (folder / "chat_template.jinja").write_text(_TEMPLATE, encoding="utf-8")


def write_line_tokenizer(folder: Path) -> None:
    """Write a tokenizer with a token for each line, so that a large file is read rather than tokenized."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"<|endoftext|>": 0, "<line>": 1}, unk_token="<line>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("\n", "removed")
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))


def write(folder: Path, kind: str, size: int) -> dict[str, str]:
    """Write at least `size` bytes, before compression, in one of FORMATS. Returns path and format."""
    folder.mkdir(parents=True)
    if kind == "text":
        for number, text in enumerate(_repeated(_texts(), size)):
            (folder / f"{number:07d}.txt").write_text(text, encoding="utf-8")
        return {"path": f"{folder}/*.txt", "format": "text"}
    if kind == "parquet":
        _write_parquet(folder / "a.parquet", size)
        return {"path": f"{folder}/a.parquet", "format": "parquet"}
    if kind == "hf":
        _write_arrow(folder / "data-00000-of-00001.arrow", size)
        return {"path": str(folder), "format": "hf"}
    path = folder / (f"a.jsonl.{kind}" if kind in ("gz", "zst") else "a.jsonl")
    with _opened(path) as stream:
        for line in _repeated(list(_lines(kind)), size):
            stream.write(line)
    return {"path": str(path), "format": "chat" if kind == "chat" else "jsonl"}


def _lines(kind: str) -> Iterator[bytes]:
    if kind == "longest":
        text = "".join(_repeated(_texts(), _LONGEST))[: _LONGEST * 9 // 10]
        yield _line({"text": text})  # JSON escapes characters: the line is longer
        return
    for text in _texts():
        if kind == "chat":
            turns = [{"role": "user", "content": "Explain:"}, {"role": "assistant", "content": text}]
            yield _line({"messages": turns})
        elif kind == "wide":
            yield _line({"raw": text * _WIDTH, "text": text})
        else:
            yield _line({"text": text})


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record).encode() + b"\n"


def _opened(path: Path) -> Any:
    if path.suffix == ".gz":
        return gzip.open(path, "wb", compresslevel=1)
    if path.suffix == ".zst":
        import zstandard

        return zstandard.open(path, "wb")
    return path.open("wb")


def _write_parquet(path: Path, size: int) -> None:
    """One row group for all, the hardest case for the memory of a reader."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    some = [pa.record_batch({"text": list(texts)}) for texts in batched(_repeated(_texts(), size), _ROWS)]
    pq.write_table(pa.Table.from_batches(some), path, row_group_size=1 << 30)


def _write_arrow(path: Path, size: int) -> None:
    import pyarrow as pa

    schema = pa.schema([("text", pa.string())])
    with path.open("wb") as file, pa.ipc.new_stream(file, schema) as stream:
        for texts in batched(_repeated(_texts(), size), _ROWS):
            stream.write_batch(pa.record_batch({"text": list(texts)}))
    state = {"_data_files": [{"filename": path.name}]}
    (path.parent / "state.json").write_text(json.dumps(state), encoding="utf-8")
