"""Detects whether the kernel killed processes of this container because it reached its memory limit."""

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
# Files of control groups v2 and v1, as a container sees its own group.
_COUNTERS = ("memory.events", "memory/memory.oom_control")
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")


class OomKillCounter:
    """Counts the kernel's OOM kills in this container; 0 if it has no control group of its own."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._known = self._count()

    def increased(self) -> bool:
        """Return whether there was a kill since the last call."""
        before, self._known = self._known, self._count()
        return self._known > before

    def describe_limit(self) -> str:
        """Return the container's memory limit as ` (limit 1.0 GiB)`, empty if there is none."""
        for name in _LIMITS:
            try:
                value = (self._root / name).read_text().strip()
            except OSError:
                continue
            # v1 represents "no limit" as a number near 2**63.
            return f" (limit {int(value) / 2**30:.1f} GiB)" if value.isdigit() and int(value) < 2**60 else ""
        return ""

    def _count(self) -> int:
        for name in _COUNTERS:
            try:
                words = (self._root / name).read_text().split()
            except OSError:
                continue
            counters = dict(zip(words[::2], words[1::2], strict=False))
            return int(counters.get("oom_kill", 0))
        return 0
