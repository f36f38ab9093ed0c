"""How much room the checkpoint volume has, told before a save finds out, and whether it can be written."""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

# The next checkpoint may be a little larger than the last: the data loader's state, the names of files.
MARGIN = 1.1
_POLL_SECONDS = 0.5
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def bytes_in(path: Path) -> int:
    """Bytes of all files under `path`. Files that go meanwhile count nothing."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += (Path(folder) / name).stat().st_size
            except OSError:
                continue
    return total


def free_bytes(path: Path) -> int:
    """Bytes that this user can still write on the volume of `path`."""
    stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize


def why_low(save: Path, last_checkpoint: int) -> str | None:
    """Why the next save will fail, None if it has room. `last_checkpoint`: bytes of the last one."""
    free, needed = free_bytes(save), int(last_checkpoint * MARGIN)
    if free >= needed:
        return None
    return (
        f"{readable(free)} free on the volume of {save}, the next checkpoint needs about {readable(needed)}: "
        "enlarge the volume, or delete what is not needed there"
    )


def probe(save: Path) -> None:
    """Raises OSError where no file can be written in `save`: its server is away, its mount has become
    read-only, permissions.

    A volume that is full passes: what was set aside is deleted there to put it in order.
    """
    file = save / f".writable.{os.getpid()}"
    try:
        file.write_bytes(b"x")
        file.unlink()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


def why_unwritable(save: Path, error: OSError) -> str:
    """For a person."""
    return f"--save {save} cannot be written: {error.strerror or error}"


def persist(
    write: Callable[[], None],
    seconds: float,
    interrupted: Callable[[], bool],
    told: Callable[[OSError | None], None],
) -> None:
    """Call `write` until it raises no OSError, at most for `seconds` or until `interrupted`: then raise it.

    `told` is called with the error when the waiting begins, and with None at its end.
    """
    deadline = time.monotonic() + seconds
    waiting = False
    while True:
        try:
            write()
        except OSError as error:
            if time.monotonic() >= deadline or interrupted():
                raise
            if not waiting:
                told(error)
            waiting = True
            time.sleep(_POLL_SECONDS)
            continue
        if waiting:
            told(None)
        return


def readable(count: int) -> str:
    """Bytes for a person: 1.5 GiB."""
    value, unit = float(count), _UNITS[0]
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
