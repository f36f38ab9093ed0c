"""Runs a process in a control group that limits its memory, page cache included, without swap.

For cgroup v1 and v2. A page of a file counts for the group of the process that read it first: pages of
libraries that other processes use are `shared` here, and the caller lowers the limit by them.
"""

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from localcluster import cgroups
from localcluster.processes import wait_until

_PERIOD: Final = 0.02
"""Seconds between two readings."""


@dataclass(frozen=True)
class _Files:
    """Names of a group's files, and in memory.stat that of mapped pages of files."""

    limit: str
    swap: str
    peak: str
    events: str
    mapped: str


_VERSION_1: Final = _Files(
    "memory.limit_in_bytes",
    "memory.memsw.limit_in_bytes",
    "memory.max_usage_in_bytes",
    "memory.oom_control",
    "mapped_file",
)
_VERSION_2: Final = _Files("memory.max", "memory.swap.max", "memory.peak", "memory.events", "file_mapped")


@dataclass(frozen=True)
class Usage:
    """What a process used, in bytes."""

    group: int
    """Peak of its group: its memory and the page cache of what it read and wrote."""
    anonymous: int
    """Peak of the memory that the kernel cannot free, read every 20 ms."""
    shared: int
    """Peak of the pages of files that it has mapped and that count for other groups."""
    seconds: float
    code: int
    killed: bool
    """Whether the kernel killed it because of the limit."""
    output: str
    """What it has printed, errors included."""


def run(words: Sequence[str], limit: int | None, environment: Mapping[str, str]) -> Usage:
    """Run a command in a group of its own that may hold `limit` bytes, no limit if None.

    Raises SystemExit with what the machine lacks if it has no such groups.
    """
    point, files = _hierarchy()
    group = point / f"{cgroups.PREFIX}bench-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise SystemExit(f"{group} cannot be created ({error.strerror}); control groups need root") from error
    try:
        if not (group / files.peak).exists():
            raise SystemExit(f"{group} has no {files.peak}; cgroup v2 has it since Linux 5.19")
        if limit is not None:
            (group / files.limit).write_text(str(limit))
            # The file is there if the kernel accounts swap. In v1 it limits memory and swap together.
            with contextlib.suppress(FileNotFoundError):
                (group / files.swap).write_text(str(limit if files is _VERSION_1 else 0))
        return _follow(words, group, files, environment)
    finally:
        wait_until(lambda: _removed(group), 30, f"{group} to empty")


def forget_pages(folder: Path) -> None:
    """Write the files in a folder to the disk and drop them from the page cache: a reader pays for them."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _hierarchy() -> tuple[Path, _Files]:
    """Return where groups are that limit memory, and their files."""
    found = cgroups.mounted()
    for point in found["cgroup"]:
        if "memory" in point.name.split(","):
            return point, _VERSION_1
    for point in found["cgroup2"]:
        if "memory" in (point / "cgroup.controllers").read_text().split():
            with contextlib.suppress(OSError):
                (point / "cgroup.subtree_control").write_text("+memory")
            return point, _VERSION_2
    raise SystemExit(
        "no control groups with the controller `memory`; mount them, or enable it for the kernel"
    )


def _follow(words: Sequence[str], group: Path, files: _Files, environment: Mapping[str, str]) -> Usage:
    # A shell joins the group and becomes the command, so that the group has all of it.
    joined = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs"), *words]
    anonymous = shared = 0
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            joined, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **environment}
        )
        try:
            while process.poll() is None:
                held, of_files = _resident(process.pid)
                anonymous = max(anonymous, held)
                shared = max(shared, of_files - _entry(group / "memory.stat", files.mapped))
                time.sleep(_PERIOD)
        finally:
            process.kill()
            process.wait()
        seconds = time.monotonic() - started
        output.seek(0)
        return Usage(
            int((group / files.peak).read_text()),
            anonymous,
            shared,
            seconds,
            process.returncode,
            _entry(group / files.events, "oom_kill") > 0,
            output.read(),
        )


def _resident(pid: int) -> tuple[int, int]:
    """Return the bytes of a process in anonymous memory and in mapped files; zeros if it has ended."""
    status = Path(f"/proc/{pid}/status")
    return _entry(status, "RssAnon:") << 10, _entry(status, "RssFile:") << 10


def _entry(file: Path, name: str) -> int:
    """Return the number behind a name in a file with a line for each; 0 if it is not there."""
    with contextlib.suppress(OSError):
        for line in file.read_text().splitlines():
            if line.startswith(f"{name} ") or line.startswith(f"{name}\t"):
                return int(line.split()[1])
    return 0


def _removed(group: Path) -> bool:
    """Whether the group is gone; the kernel keeps it for a moment after its last process has ended."""
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()
