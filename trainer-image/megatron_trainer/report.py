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

# A rank ends with this, Megatron's own code, when a result must be computed again on another GPU to be judged
# (megatron.core.rerun_state_machine). To start it again in this pod would tell nothing.
RESUME_ELSEWHERE = 16

MAX_EVENT_BYTES = 16 << 10


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
        message = {"event": event, "rank": self.rank, "generation": self.generation, **fields}
        try:
            self._socket.sendto(json.dumps(message).encode()[:MAX_EVENT_BYTES], self._address)
        except OSError:
            return


class ProgressFile:
    """The run's progress.jsonl beside its checkpoints. Exactly one rank of the run appends to it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, record: dict[str, Any]) -> None:
        """Add one line. Whole lines only: one write, in append mode."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({**record, "time": time.time()}) + "\n"
        with self._path.open("ab", buffering=0) as file:
            file.write(line.encode())
