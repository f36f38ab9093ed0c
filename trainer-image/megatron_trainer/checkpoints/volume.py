"""Free space of the checkpoint volume, reported before a save fails, and whether it is writable."""

import errno
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

# Factor by which the next checkpoint may be larger than the last: data loader state, file names.
MARGIN = 1.1
# In the cause of a failed save.
SAVE_FAILED = "a checkpoint could not be written"
_POLL_SECONDS = 0.5
_FULL = re.compile(
    rf"\[Errno (?:{errno.ENOSPC}|{errno.EDQUOT})\]|no space left on device|quota exceeded", re.IGNORECASE
)
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def directory_size(path: Path) -> int:
    """Return the bytes of all files under `path`. Files that are deleted meanwhile count nothing."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += (Path(folder) / name).stat().st_size
            except OSError:
                continue
    return total


def free_bytes(path: Path) -> int:
    """Return the bytes that this user can still write on the volume of `path`."""
    stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize


def describe_shortage(save: Path, last_checkpoint: int, written: int = 0) -> str | None:
    """Return why the next save will fail, None if there is space.

    `last_checkpoint`: bytes of the last one. `written`: those of a save in progress.
    """
    free, needed = free_bytes(save), int(last_checkpoint * MARGIN) - written
    if free >= needed:
        return None
    more = f"the save in progress needs about {format_bytes(needed)} more"
    return (
        f"{format_bytes(free)} free on the volume of {save}, "
        f"{more if written else f'the next checkpoint needs about {format_bytes(needed)}'}: "
        "enlarge the volume or delete other files there"
    )


def is_full(error: OSError) -> bool:
    """Whether a write failed because the volume is full, or the user's quota on it."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def names_full(cause: str) -> bool:
    """Whether a save failed by such an error, by the cause of a failure: `free_bytes` does not count a quota.

    Shared memory may have no space left either.
    """
    return SAVE_FAILED in cause and _FULL.search(cause) is not None


def probe(save: Path) -> None:
    """Raise OSError if no file can be written in `save`: server away, read-only mount, permissions.

    A full volume passes: checkpoints that were set aside are deleted there later.
    """
    file = save / f".writable.{os.getpid()}"
    try:
        file.write_bytes(b"x")
        file.unlink()
    except OSError as error:
        if not is_full(error):
            raise


def describe_write_error(save: Path, error: OSError) -> str:
    """Return a message with the path and the error."""
    return f"--save {save} cannot be written: {error.strerror or error}"


def retry_until_writable(
    write: Callable[[], None],
    seconds: float,
    interrupted: Callable[[], bool],
    on_change: Callable[[OSError | None], None],
) -> None:
    """Call `write` until it raises no OSError. Raises it after `seconds`, or once `interrupted`.

    `on_change` is called with the first error, and with None when a write succeeds after one.
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
                on_change(error)
            waiting = True
            time.sleep(_POLL_SECONDS)
            continue
        if waiting:
            on_change(None)
        return


def format_bytes(count: int) -> str:
    """Format bytes as `1.5 GiB`."""
    value, unit = float(count), _UNITS[0]
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
