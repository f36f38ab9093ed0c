"""The files of a tar file, all of them."""

from collections.abc import Iterator
from tarfile import BLOCKSIZE, ReadError, TarFile, TarInfo
from typing import Final

_END_BYTES: Final = 1 << 20
"""Bytes behind the last file that are read at once."""


def files_of(tar: TarFile) -> Iterator[TarInfo]:
    """Yield the files of a tar file in their order.

    Raises ReadError where something else than the end of the archive, which is of zeros, follows them:
    tarfile takes what it cannot read behind the first header for it. Raises OSError.
    """
    yield from (member for member in tar if member.isfile())
    raw = tar.fileobj
    assert raw is not None, "the file is open"
    raw.seek(tar.offset)
    end = raw.read(BLOCKSIZE)
    whole = len(end) == BLOCKSIZE
    while end and whole:
        whole = not any(end)
        end = raw.read(_END_BYTES)
    if not whole:
        raise ReadError(f"byte {tar.offset:,} begins neither a file nor the end of the archive")
