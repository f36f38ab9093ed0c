"""Whether the kernel ended processes of this container because it was at its memory limit."""

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
# Files of control groups v2 and v1, as a container sees its own group.
_COUNTERS = ("memory.events", "memory/memory.oom_control")
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")


class MemoryKills:
    """Counts the kernel's OOM kills in this container; 0 where it has no control group of its own."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._known = self._count()

    def more(self) -> bool:
        """Whether there was one since the last look."""
        before, self._known = self._known, self._count()
        return self._known > before

    def limit(self) -> str:
        """The container's limit in words, empty where there is none."""
        for name in _LIMITS:
            try:
                value = (self._root / name).read_text().strip()
            except OSError:
                continue
            # v1 writes "no limit" as a number near 2**63.
            return f" (limit {int(value) / 2**30:.1f} GiB)" if value.isdigit() and int(value) < 2**60 else ""
        return ""

    def _count(self) -> int:
        for name in _COUNTERS:
            try:
                words = (self._root / name).read_text().split()
            except OSError:
                continue
            told = dict(zip(words[::2], words[1::2], strict=False))
            return int(told.get("oom_kill", 0))
        return 0
