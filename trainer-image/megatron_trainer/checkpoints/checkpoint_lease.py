"""The lease of a checkpoint directory: a file in it names the one launcher that may write.

A Master pod on a node that is cut off from the network does not learn that it was replaced, but both pods
share the volume. The replacement writes its identity to the file; the older launcher checks it twice a
second, finds another identity and stops its ranks; a rank checks it before every save, and again before
the shards, metadata.json and the tracker, since it may have been frozen meanwhile. The replacement touches
the directory only after FENCE_SECONDS, which give the older one time to stop. The pod of another node has the
same Master before and after it is replaced; its ranks compare their generation with that of the run journal.
"""

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from megatron_contract.environment import JOURNAL_FILE, LEASE_FILE
from megatron_contract.wire import WireError, load_json

from megatron_trainer.checkpoints.volume import is_full
from megatron_trainer.errors import TrainerError

# Seconds from acquiring the lease until the directory is touched: the older launcher checks every half
# second.
FENCE_SECONDS = 3.0


class LeaseLostError(TrainerError):
    """Another launcher holds the lease of the checkpoint directory. The text names it."""


class CheckpointLease:
    """One launcher's lease of a checkpoint directory. `incarnation` identifies the launcher."""

    def __init__(
        self, save: Path, incarnation: str, run_id: str, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._path = save / LEASE_FILE
        self.incarnation = incarnation
        self._run_id = run_id
        self._sleep = sleep
        self._fenced_until: float | None = None

    def acquire(self) -> None:
        """Take the lease, also from another holder. Raises OSError if the directory is not writable."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(
            {
                "incarnation": self.incarnation,
                "runId": self._run_id,
                "host": socket.gethostname(),
                "time": time.time(),
            }
        )
        temporary = self._path.with_name(f".{LEASE_FILE}.{self.incarnation}")
        try:
            with temporary.open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            if self._create(temporary):
                return
            previous = read_holder(self._path.parent)
            temporary.replace(self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            previous = read_holder(self._path.parent)
            if not is_full(error) or not self._overwrite(text):
                raise
        if previous.get("incarnation") != self.incarnation:
            self._fenced_until = time.monotonic() + FENCE_SECONDS

    def _create(self, temporary: Path) -> bool:
        """Create the lease file unless there is one: another launcher may do the same at this moment.

        False as well on a volume without hard links, where the first holder waits for the fence too.
        """
        try:
            self._path.hardlink_to(temporary)
        except OSError:
            return False
        temporary.unlink()
        return True

    def _overwrite(self, text: str) -> bool:
        """Write the lease file in place: on a full volume only what exists has space. False if that fails.

        A text that got mixed with that of another launcher, which does this at the same moment, fails too:
        it names one of them at most.
        """
        try:
            # O_TRUNC would free that space. One write changes the holder: spaces replace a longer text.
            with self._path.open("rb+", buffering=0) as file:
                file.write(text.encode().ljust(os.fstat(file.fileno()).st_size))
                os.fsync(file.fileno())
        except OSError:
            return False
        return read_holder(self._path.parent).get("incarnation") == self.incarnation

    def await_fence(self) -> None:
        """Wait until a previous holder has had time to stop.

        Raises LeaseLostError if this one lost the lease.
        """
        if self._fenced_until is not None:
            self._sleep(max(0.0, self._fenced_until - time.monotonic()))
        self._fenced_until = None
        self.check()

    def check(self) -> None:
        """Raise LeaseLostError if another launcher has taken the lease."""
        require_lease(self._path.parent, self.incarnation)


def read_holder(save: Path) -> dict[str, object]:
    """Return the content of the lease file, {} if there is none or it cannot be read now."""
    try:
        value = load_json((save / LEASE_FILE).read_bytes())
    except (OSError, WireError):
        return {}
    return value if isinstance(value, dict) else {}


def was_held(save: Path, run_id: str) -> bool:
    """Whether a launcher of the run has held the lease of `save`, also if that cannot be found out now.

    A lease of another run, on a volume that outlived it, does not count.
    """
    try:
        (save / LEASE_FILE).stat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False
    except OSError:
        return True
    return read_holder(save).get("runId", run_id) == run_id


def require_lease(save: Path, incarnation: str) -> None:
    """Raise LeaseLostError unless `incarnation` holds the lease, or no holder is known."""
    holder = read_holder(save)
    if holder.get("incarnation", incarnation) != incarnation:
        raise LeaseLostError(
            f"{save} is owned by another Master pod now ({holder.get('host')}, run {holder.get('runId')}): "
            "this one was replaced and no longer writes checkpoints"
        )


def require_generation(save: Path, generation: int) -> None:
    """Raise LeaseLostError if the run journal in `save` has a later generation, or pass if it has none."""
    try:
        journal = load_json((save / JOURNAL_FILE).read_bytes())
    except (OSError, WireError):
        return
    newest = journal.get("generation") if isinstance(journal, dict) else None
    if isinstance(newest, int) and newest > generation:
        raise LeaseLostError(
            f"{save} is written by generation {newest} now: the ranks of generation {generation} were "
            "replaced and no longer write checkpoints"
        )
