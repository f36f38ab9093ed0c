"""Opens plain, gzip and zstd files. A compressed file that is not whole is an error, never a shorter file."""

import gzip
import io
import zlib
from typing import Any, BinaryIO

from megatron_trainer.data.files import SourceFile, size_of
from megatron_trainer.errors import TrainerError

SUFFIXES = (".gz", ".zst")
_MAGIC = {
    b"\x1f\x8b": ("gzip", "name it .gz"),
    b"\x28\xb5\x2f\xfd": ("zstd", "name it .zst"),
    b"BZh": ("bzip2", "compress it with gzip or zstd"),
    b"\xfd7zXZ": ("xz", "compress it with gzip or zstd"),
    b"PK\x03\x04": ("zip", "unpack it"),
    b"\x04\x22\x4d\x18": ("lz4", "compress it with gzip or zstd"),
    b"PAR1": ("Parquet", "set format: parquet"),
}
# What a hostile block of zstd can grow to is bounded by what is given to the decompressor at a time.
_ZSTD_CHUNK = 8 << 10


class IncompleteFileError(TrainerError):
    """A compressed file ends early, or is of another format."""


class _ZstdFile(io.RawIOBase):
    """A zstd file of any number of frames. The stream reader of the library ends silently in a cut frame."""

    def __init__(self, raw: BinaryIO) -> None:
        import zstandard

        self._raw = raw
        self._decompressor = zstandard.ZstdDecompressor()
        self._frame: Any = None
        self._compressed = b""
        self._text = memoryview(b"")

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._raw.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while not self._text:
            if not (data := self._compressed or self._raw.read(_ZSTD_CHUNK)):
                if self._frame is not None:
                    raise IncompleteFileError("it ends within a zstd frame")
                return 0
            if self._frame is None:
                self._frame = self._decompressor.decompressobj()
            self._text = memoryview(self._frame.decompress(data))
            self._compressed = b""
            if self._frame.eof:
                self._compressed = self._frame.unused_data
                self._frame = None
        length = min(len(buffer), len(self._text))
        buffer[:length] = self._text[:length]
        self._text = self._text[length:]
        return length


def is_compressed(path: SourceFile) -> bool:
    """Return whether the name is that of a compressed file, which is read from its start."""
    return path.suffix.lower() in SUFFIXES


def open_bytes(path: SourceFile) -> tuple[BinaryIO, BinaryIO]:
    """Open a file. Returns its uncompressed bytes, and the file below, whose position is the progress.

    Raises IncompleteFileError for an empty file with the name of a compressed one, ObjectError and OSError.
    """
    raw = path.open("rb")
    if not is_compressed(path):
        return raw, raw
    if not size_of(path):
        raw.close()
        raise IncompleteFileError("it is empty")
    if path.suffix.lower() == ".gz":
        return io.BufferedReader(gzip.GzipFile(fileobj=raw)), raw
    return io.BufferedReader(_ZstdFile(raw)), raw


def file_error(error: Exception) -> str | None:
    """Return what an error of a reader shows of its file; None for an error of another kind."""
    if type(error).__name__ == "ZstdError" and "too much memory" in str(error):
        return "has a zstd window above 128 MiB; compress it without --long"
    # Classes of libraries would have to be imported first; pyarrow's OSError has no errno.
    arrow = type(error).__name__ in ("ZstdError", "ArrowInvalid", "ArrowNotImplementedError") or (
        isinstance(error, OSError) and error.errno is None
    )
    if arrow or isinstance(error, (IncompleteFileError, EOFError, zlib.error)):
        return f"is not whole, or not of this format: {' '.join(str(error).split())}; copy it again"
    return None


def other_format(data: bytes) -> str | None:
    """Return what a file that begins with these bytes is, and the fix; None for one that may be text."""
    for magic, (name, fix) in _MAGIC.items():
        if data.startswith(magic):
            return f"is a {name} file; {fix}"
    return None
