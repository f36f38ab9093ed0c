"""How much room the checkpoint volume has, told before a save finds out."""

import os
from pathlib import Path

# The next checkpoint may be a little larger than the last: the data loader's state, the names of files.
MARGIN = 1.1
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


def readable(count: int) -> str:
    """Bytes for a person: 1.5 GiB."""
    value, unit = float(count), _UNITS[0]
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
