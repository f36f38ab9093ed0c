"""Folders that appear under their name only when they are complete."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from megatron_trainer.weights.conversion_error import ConversionError, DestinationExistsError


def check(folder: Path) -> None:
    """Raise DestinationExistsError if the destination exists, ConversionError if its parent does not."""
    if folder.exists() or folder.is_symlink():
        raise DestinationExistsError(f"--to {folder} exists; remove it or choose another folder")
    if not folder.parent.is_dir():
        raise ConversionError(f"--to {folder}: its parent {folder.parent} is not a folder; create it")


@contextmanager
def building(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `folder`; rename it at the end, or remove it after an error.

    Raises DestinationExistsError and ConversionError as `check` does.
    """
    check(folder)
    part = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.partial")
    try:
        part.mkdir()
    except PermissionError as error:
        raise ConversionError(
            f"--to {folder}: cannot write {folder.parent}; make it writable for user {os.getuid()}"
        ) from error
    try:
        yield part
        # Not replaced if another process made it in the meantime.
        check(folder)
        part.rename(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
