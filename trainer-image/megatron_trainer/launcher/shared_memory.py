"""Segments of /dev/shm that killed ranks leave behind.

NCCL removes its segments when a communicator is destroyed; a rank that is killed destroys none. They count
against the pod's memory, and after some restarts /dev/shm is full.
"""

import contextlib
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
_PATTERN = "nccl-*"


def remove_unused_segments(directory: Path = SHARED_MEMORY, processes: Path = Path("/proc")) -> list[str]:
    """Remove NCCL's segments in `directory` that no process maps. Returns their names.

    A segment of another user, and one that vanishes meanwhile, is left alone.
    """
    segments = {str(path): path for path in directory.glob(_PATTERN)}
    if not segments:
        return []
    used = _mapped_files(processes, str(directory))
    removed = []
    for name, path in sorted(segments.items()):
        if name in used:
            continue
        with contextlib.suppress(OSError):
            path.unlink()
            removed.append(path.name)
    return removed


def _mapped_files(processes: Path, directory: str) -> set[str]:
    """Files below `directory` that a visible process maps."""
    files = set()
    for process in processes.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for line in (process / "maps").read_text().splitlines():
                _, found, rest = line.partition(directory + "/")
                if found:
                    files.add(f"{directory}/{rest}")
    return files
