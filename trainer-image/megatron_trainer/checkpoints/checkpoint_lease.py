"""Who may write the checkpoint directory: the launcher of one Master pod, by a file in it.

A pod on a node that is cut off does not hear that it was replaced, but both see the volume. The newcomer
writes its name; the older one looks twice a second, finds another name and stops its ranks; a rank looks
before every save. The newcomer puts the directory in order only when the older one has had time to see it.
"""

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

OWNER_FILE = "owner.json"
# From a claim until the directory is touched: the older launcher looks every half second and then kills.
FENCE_SECONDS = 3.0


class NotOwner(Exception):
    """Another launcher has claimed the checkpoint directory. The text says which."""


class Ownership:
    """One launcher's claim on a checkpoint directory."""

    def __init__(
        self, save: Path, incarnation: str, run_id: str, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._path = save / OWNER_FILE
        self.incarnation = incarnation
        self._run_id = run_id
        self._sleep = sleep
        self._quiet_at: float | None = None

    def claim(self) -> None:
        """Take the directory over. Raises OSError where it cannot be written."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        older = owner(self._path.parent)
        text = json.dumps(
            {
                "incarnation": self.incarnation,
                "runId": self._run_id,
                "host": socket.gethostname(),
                "time": time.time(),
            }
        )
        temporary = self._path.with_name(f".{OWNER_FILE}.{self.incarnation}")
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
        if older and older.get("incarnation") != self.incarnation:
            self._quiet_at = time.monotonic() + FENCE_SECONDS

    def await_fence(self) -> None:
        """Wait until an older owner has had time to stop. Raises NotOwner if this launcher is the older."""
        if self._quiet_at is not None:
            self._sleep(max(0.0, self._quiet_at - time.monotonic()))
        self._quiet_at = None
        self.check()

    def check(self) -> None:
        """Raises NotOwner if somebody else has claimed the directory since."""
        require_owner(self._path.parent, self.incarnation)


def owner(save: Path) -> dict[str, object]:
    """What the file says, {} where there is none or it cannot be read just now."""
    try:
        value = json.loads((save / OWNER_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def require_owner(save: Path, incarnation: str) -> None:
    """Raises NotOwner unless `incarnation` is the owner, or nobody is known to be."""
    found = owner(save)
    if found.get("incarnation", incarnation) != incarnation:
        raise NotOwner(
            f"{save} belongs to another Master pod now ({found.get('host')}, run {found.get('runId')}): "
            "this one was replaced and leaves its checkpoints alone"
        )
