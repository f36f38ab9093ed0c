"""Reads the documents of a shard, one at a time, in the order of the files."""

import json
import os
import tarfile
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from megatron_trainer.data.chat import ConversationError, to_messages
from megatron_trainer.data.compression import open_bytes, other_format
from megatron_trainer.data.files import SourceFile, path_of
from megatron_trainer.data.image_text import read_samples
from megatron_trainer.data.image_text import to_messages as to_parts
from megatron_trainer.data.sources import (
    LONGEST_DOCUMENT,
    Shard,
    Source,
    check_column,
    open_parquet,
    too_long,
    whole,
)
from megatron_trainer.read_errors import is_temporary

Render = Callable[[list[dict[str, Any]], list[Any] | None], str]
"""Makes the text of a conversation, with its tools, with the tokenizer's template."""
_ROWS = 64
_BLOCK = 1 << 20


class Position:
    """Where in the files of a shard its reader is: bytes of the file as it is on the volume."""

    def __init__(self) -> None:
        """Begin before the first file."""
        self._before = 0
        self._file: BinaryIO | None = None
        self._start = 0

    def opened(self, file: BinaryIO, start: int = 0) -> None:
        """Continue with this file, from its byte `start`."""
        self._before = self.bytes_read()
        self._file, self._start = file, start

    def bytes_read(self) -> int:
        """Return how many bytes of the shard have been read."""
        if self._file is None or self._file.closed:
            return self._before
        return self._before + max(0, self._file.seek(0, os.SEEK_CUR) - self._start)


def read_documents(
    source: Source, shard: Shard, render: Render | None = None, position: Position | None = None
) -> Iterator[str]:
    """Yield the documents that are not empty; null is empty. `render` is needed for conversations.

    Raises PreparationError for a record that is not of the source's format, and OSError.
    """
    position = position or Position()
    read: Iterator[str]
    if source.format == "text":
        read = _texts(source, shard, position)
    elif source.format == "parquet":
        read = _parquet(source, shard)
    elif source.format == "hf":
        read = _arrow(source, shard, position)
    elif source.format == "webdataset":
        read = _samples(source, shard, render, position)
    else:
        read = _records(source, shard, render, position)
    return (each for each in read if each and not each.isspace())


def _lines(source: Source, shard: Shard, position: Position) -> Iterator[tuple[Callable[[], str], bytes]]:
    """Lines that begin in the shard, each with what names its place."""
    path = shard.files[0]
    with whole(source, path):
        stream, raw = open_bytes(path)
        with stream:
            position.opened(raw, shard.start)
            at = shard.start
            if at:
                stream.seek(at - 1)
                at += _skip_line(stream) - 1
            first, number = at, 0
            while shard.end is None or at < shard.end:
                line = stream.readline(LONGEST_DOCUMENT + 1)
                if not line:
                    return
                number += 1
                place = _Place(path, first, number)
                if len(line) > LONGEST_DOCUMENT:
                    problem = f"{place()} is longer than {LONGEST_DOCUMENT >> 20} MiB"
                    fix = "divide the document, or check that the file has one record a line"
                    raise source.refuse("path", f"{problem}; {fix}")
                yield place, line
                at += len(line)


def _skip_line(stream: BinaryIO) -> int:
    length = 0
    while part := stream.readline(_BLOCK):
        length += len(part)
        if part.endswith(b"\n"):
            break
    return length


class _Place:
    """`file:line`. Lines before the shard are counted only for an error."""

    def __init__(self, path: SourceFile, first: int, number: int) -> None:
        self._path, self._first, self._number = path, first, number

    def __call__(self) -> str:
        before, left = 0, self._first
        if left:
            with self._path.open("rb") as stream:
                while left > 0 and (data := stream.read(min(left, _BLOCK))):
                    before += data.count(b"\n")
                    left -= len(data)
        return f"{self._path}:{before + self._number}"


def _records(source: Source, shard: Shard, render: Render | None, position: Position) -> Iterator[str]:
    for place, line in _lines(source, shard, position):
        if not line.strip():
            continue
        record = _parse(source, place, line)
        text: Any
        if source.format == "chat":
            assert render is not None, "conversations need a template"
            try:
                text = render(to_messages(record), record.get("tools") or None)
            except ConversationError as error:
                raise source.refuse("path", f"{place()}: {error}") from error
        else:
            text = _text_of(source, place, record)
        if text is not None:
            if b"\\u" in line:
                _check_surrogates(source, place, text)
            yield text


def _parse(source: Source, place: Callable[[], str], line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        what = other_format(line) or f"is not UTF-8 at byte {error.start}; convert it, for example with iconv"
        raise source.refuse("path", f"{place()} {what}") from error
    except (ValueError, RecursionError) as error:
        what = other_format(line) or f"is not one line of JSON: {error}; correct the line"
        raise source.refuse("path", f"{place()} {what}") from error


def _text_of(source: Source, place: Callable[[], str], record: Any) -> str | None:
    if not isinstance(record, dict):
        fix = f'write each line as {{"{source.key}": ...}}'
        raise source.refuse("path", f"{place()} is not a JSON object; {fix}")
    if source.key not in record:
        keys = ", ".join(list(record)[:8]) or "no keys"
        raise source.refuse("key", f'{place()} has no "{source.key}", it has {keys}; set key to one of them')
    text = record[source.key]
    if text is not None and not isinstance(text, str):
        kind = type(text).__name__
        raise source.refuse("key", f'"{source.key}" at {place()} is of type {kind}, not a string; set key')
    return text


def _check_surrogates(source: Source, place: Callable[[], str], text: str) -> None:
    if problem := lone_surrogate(text):
        raise source.refuse("path", f"{place()} {problem}")


def lone_surrogate(text: str) -> str | None:
    """What is wrong with a text, of which JSON may escape half of a surrogate pair: no tokenizer takes it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        broken = f"\\u{ord(text[error.start]):04x}"
        return f"has {broken} without the other half of its pair; remove or replace it"
    return None


def _texts(source: Source, shard: Shard, position: Position) -> Iterator[str]:
    for path in shard.files:
        with whole(source, path):
            stream, raw = open_bytes(path)
            with stream:
                position.opened(raw)
                data = stream.read(LONGEST_DOCUMENT + 1)
        if len(data) > LONGEST_DOCUMENT:
            raise source.refuse("path", f"{path} {too_long()}")
        try:
            yield data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            what = other_format(data) or "is not UTF-8 text; convert it, or narrow the pattern"
            raise source.refuse("path", f"{path}:{line} {what}") from error


def _rows(source: Source, path: SourceFile, rows: Any, first: int) -> Iterator[str]:
    """Texts of a column, which is read from row `first` of the file on."""
    for start in range(0, len(rows), _ROWS):
        some: list[str | None] = rows.slice(start, _ROWS).to_pylist()
        for number, text in enumerate(some, start=first + start):
            if text is not None and len(text) > LONGEST_DOCUMENT:
                problem = f"row {number:,} of {path} is longer than {LONGEST_DOCUMENT >> 20} MiB"
                raise source.refuse("column", f"{problem}; divide the document")
            if text is not None:
                yield text


def _parquet(source: Source, shard: Shard) -> Iterator[str]:
    path = shard.files[0]
    with whole(source, path), open_parquet(path) as file:
        check_column(source, path, file.schema_arrow)
        groups = list(range(shard.start, shard.end or 0))
        row = sum(file.metadata.row_group(index).num_rows for index in range(shard.start))
        for batch in file.iter_batches(_ROWS, row_groups=groups, columns=[source.key]):
            yield from _rows(source, path, batch.column(0), row)
            row += batch.num_rows


def _arrow(source: Source, shard: Shard, position: Position) -> Iterator[str]:
    import pyarrow as pa

    path = path_of(shard.files[0])
    # Of a mapped file all that was read would count as memory of the pod.
    with whole(source, path), pa.OSFile(str(path)) as raw, pa.ipc.open_stream(raw) as stream:
        position.opened(raw)
        check_column(source, path, stream.schema)
        row = 0
        for batch in stream:
            yield from _rows(source, path, batch.column(source.key), row)
            row += batch.num_rows


def _samples(source: Source, shard: Shard, render: Render | None, position: Position) -> Iterator[str]:
    assert render is not None, "samples need a processor"
    path = path_of(shard.files[0])
    name = ""
    with whole(source, path), path.open("rb") as raw:
        position.opened(raw)
        try:
            with tarfile.open(fileobj=raw, mode="r:") as tar:
                for sample in read_samples(tar, source.media):
                    name = sample.record.name
                    data = tar.extractfile(sample.record)
                    assert data is not None, "a record is a file"
                    record = json.loads(data.read())
                    yield render(to_parts(record, str(path), sample.files, source.media), None)
                    name = ""
        except tarfile.TarError as error:
            raise source.refuse("path", f"{path} is not a whole tar file: {error}; copy it again") from error
        except (ConversationError, ValueError) as error:
            if is_temporary(error):
                raise
            place = f"{path}, {name}" if name else str(path)
            raise source.refuse("path", f"{place}: {error}") from error
