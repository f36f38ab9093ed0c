"""Reads the documents of a shard, one at a time, in the order of the files."""

import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from megatron_trainer.data.chat import ConversationError, to_messages
from megatron_trainer.data.preparation_error import PreparationError
from megatron_trainer.data.sources import Shard, Source

Render = Callable[[list[dict[str, Any]]], str]
"""Makes the text of a conversation with the tokenizer's template."""
_ROWS = 256


def read_documents(source: Source, shard: Shard, render: Render | None = None) -> Iterator[str]:
    """Yield the documents that are not empty. `render` is needed for conversations.

    Raises PreparationError for a record that is not of the source's format, and OSError.
    """
    if source.format == "text":
        read = _texts(source, shard)
    elif source.format == "parquet":
        read = _parquet(source, shard)
    elif source.format == "hf":
        read = _arrow(source, shard)
    else:
        read = _records(source, shard, render)
    return (text for text in read if text.strip())


def _open(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return io.BufferedReader(gzip.open(path))
    if path.suffix == ".zst":
        import zstandard

        reader = zstandard.ZstdDecompressor().stream_reader(
            path.open("rb"), read_across_frames=True, closefd=True
        )
        return io.BufferedReader(reader)
    return path.open("rb")


@contextmanager
def _whole(source: Source, path: Path) -> Iterator[None]:
    """Turn the error of a file that is cut off or of another format into one that names it."""
    try:
        yield
    except PreparationError:
        raise
    except Exception as error:
        libraries = ("ZstdError", "ArrowInvalid")  # a class of theirs would have to be imported first
        if isinstance(error, (EOFError, gzip.BadGzipFile, zlib.error)) or type(error).__name__ in libraries:
            problem = f"{path} is not whole, or not of this format: {error}; copy it again"
            raise source.refuse("path", problem) from error
        raise


def _lines(source: Source, shard: Shard) -> Iterator[tuple[int, bytes]]:
    """Lines that begin in the shard, each with its position in bytes."""
    path = shard.files[0]
    with _whole(source, path), _open(path) as stream:
        position = shard.start
        if position:
            stream.seek(position - 1)
            position += len(stream.readline()) - 1
        while shard.end is None or position < shard.end:
            line = stream.readline()
            if not line:
                return
            yield position, line
            position += len(line)


def _records(source: Source, shard: Shard, render: Render | None) -> Iterator[str]:
    for position, line in _lines(source, shard):
        if not line.strip():
            continue
        where = f"{shard.files[0]} at byte {position:,}"
        try:
            record = json.loads(line)
        except ValueError as error:
            raise source.refuse("path", f"{where} is not a line of JSON: {error}") from error
        if source.format == "chat":
            assert render is not None, "conversations need a template"
            try:
                shown = render(to_messages(record))
            except ConversationError as error:
                raise source.refuse("path", f"{where}: {error}") from error
            yield shown
            continue
        text = record.get(source.key) if isinstance(record, dict) else None
        if not isinstance(text, str):
            raise source.refuse("key", f'{where} has no text under "{source.key}"')
        yield text


def _texts(source: Source, shard: Shard) -> Iterator[str]:
    for path in shard.files:
        with _whole(source, path), _open(path) as stream:
            data = stream.read()
        try:
            yield data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise source.refuse("path", f"{path} is not UTF-8 text: {error}; narrow the pattern") from error


def _check_column(source: Source, path: Path, schema: Any) -> None:
    import pyarrow as pa

    if source.key not in schema.names:
        raise source.refuse("column", f"{path} has no column {source.key}; it has {', '.join(schema.names)}")
    kind = schema.field(source.key).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise source.refuse("column", f"column {source.key} of {path} is {kind}, not string")


def _parquet(source: Source, shard: Shard) -> Iterator[str]:
    import pyarrow.parquet as pq

    path = shard.files[0]
    with _whole(source, path), pq.ParquetFile(path) as file:
        _check_column(source, path, file.schema_arrow)
        groups = list(range(shard.start, shard.end or 0))
        for batch in file.iter_batches(_ROWS, row_groups=groups, columns=[source.key]):
            yield from (text for text in batch.column(0).to_pylist() if text is not None)


def _arrow(source: Source, shard: Shard) -> Iterator[str]:
    import pyarrow as pa

    path = shard.files[0]
    with _whole(source, path), pa.memory_map(str(path)) as mapped, pa.ipc.open_stream(mapped) as stream:
        _check_column(source, path, stream.schema)
        for batch in stream:
            column = batch.column(source.key)
            for start in range(0, len(column), _ROWS):
                rows = column.slice(start, _ROWS).to_pylist()
                yield from (text for text in rows if text is not None)
