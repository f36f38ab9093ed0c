"""What a rank tells: events to the launcher of its pod, and one line an iteration to the run's progress file.

Events are JSON datagrams on a Unix socket. An event that finds the socket full or gone is dropped: training
never waits for its observer.
"""

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

SOCKET_ENV = "MEGATRON_TRAINER_EVENTS"
GENERATION_ENV = "MEGATRON_TRAINER_GENERATION"
RESUME_ENV = "MEGATRON_TRAINER_RESUME"
SKIP_ENV = "MEGATRON_TRAINER_SKIP"
OWNER_ENV = "MEGATRON_TRAINER_OWNER"
PREFLIGHT_ENV = "MEGATRON_TRAINER_PREFLIGHT"
STACKS_ENV = "MEGATRON_TRAINER_STACKS"

# A rank ends with this, Megatron's own code, when a result must be computed again on another GPU to be judged
# (megatron.core.rerun_state_machine). To start it again in this pod would tell nothing.
RESUME_ELSEWHERE = 16
# A rank ends with this when the last iteration is done: 0 is also how a process ends that merely left.
FINISHED = 99

MAX_EVENT_BYTES = 16 << 10
_MOST_UNWRITTEN_BYTES = 1 << 20


class Reporter:
    """One rank's way to its launcher. Without a socket in the environment it reports to nobody."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.generation = int(os.environ.get(GENERATION_ENV, "0"))
        self._address = os.environ.get(SOCKET_ENV)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(0.2)

    def send(self, event: str, **fields: Any) -> None:
        """Tell the launcher of `event`, with `fields` that JSON can hold."""
        if not self._address:
            return
        message = {"event": event, "rank": self.rank, "generation": self.generation, "time": time.time()}
        message |= fields
        try:
            self._socket.sendto(json.dumps(message).encode()[:MAX_EVENT_BYTES], self._address)
        except OSError:
            return


class ProgressFile:
    """The run's progress.jsonl beside its checkpoints. Exactly one rank of the run appends to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unwritten = b""

    def append(self, record: dict[str, Any]) -> None:
        """Add one line, in one write. What a full volume does not take is added with a later line."""
        line = json.dumps({**record, "time": time.time()}) + "\n"
        self._unwritten = (self._unwritten + line.encode())[-_MOST_UNWRITTEN_BYTES:]
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab", buffering=0) as file:
                self._unwritten = self._unwritten[file.write(self._unwritten) or 0 :]
        except OSError as error:
            print(f"megatron-train: cannot add to {self._path}: {error.strerror}", flush=True)
