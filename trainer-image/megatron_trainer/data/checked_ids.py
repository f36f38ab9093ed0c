"""What a check has found in files of token ids, kept on the data volume so that each is read once.

A record is of one version of a file: path, type, size and time of change are in its name, as a digest, and in
it. The next Job on the volume removes it once the file is gone or has changed (unused_files.py).
"""

import contextlib
import errno
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from megatron_trainer.data.indexed_files import IndexedFiles
from megatron_trainer.data.shards import temporary

RECORD: Final = re.compile(r"[0-9a-f]{32}\.json")
"""Names of records."""
LEFTOVER: Final = re.compile(r"\.[0-9a-f]{32}\.json\..+")
"""Names of records that were being written when their pod was killed."""
_INVALID: Final = (ValueError, TypeError, KeyError, RecursionError)


def version(file: Path) -> list[int]:
    """Return the size of a file in bytes, and when it was changed in nanoseconds. Raises OSError."""
    status = file.stat()
    return [status.st_size, status.st_mtime_ns]


def find(files: IndexedFiles, folder: Path) -> tuple[int, int] | None:
    """Return the smallest and the largest id of a file that is as it was when it was checked, or None."""
    try:
        file = files.ids_file
        found: Any = json.loads((folder / _name(_words(file, str(files.dtype), version(file)))).read_text())
        smallest, largest = found["ids"]
        return int(smallest), int(largest)
    except (OSError, *_INVALID):
        return None


def keep(files: IndexedFiles, folder: Path, found: tuple[int, int]) -> None:
    """Keep what was found in a file, where the volume can be written."""
    with contextlib.suppress(OSError):
        words = _words(files.ids_file, str(files.dtype), version(files.ids_file))
        target = folder / _name(words)
        folder.mkdir(parents=True, exist_ok=True)
        part = temporary(target)
        part.write_text(json.dumps({"file": words, "ids": found}), encoding="utf-8")
        part.replace(target)


def is_outdated(name: str, content: bytes, volume: Path) -> bool:
    """Whether this is a record of a file of the volume that is gone or has changed, which nobody reads."""
    try:
        path, kind, *of = json.loads(content)["file"]
        file = Path(path)
        if name != _name(_words(file, kind, of)) or not file.is_relative_to(volume):
            return False
        return bool(version(file) != of)
    except _INVALID:
        return False
    except OSError as error:
        return error.errno in (errno.ENOENT, errno.ENOTDIR)


def _words(file: Path, kind: str, of: Sequence[int]) -> list[object]:
    return [str(file), kind, *of]


def _name(words: list[object]) -> str:
    return f"{hashlib.sha256(json.dumps(words).encode()).hexdigest()[:32]}.json"
