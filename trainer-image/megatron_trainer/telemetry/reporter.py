"""What a rank reports: events to its pod's launcher, and one line per iteration to the run's progress file.

Events are JSON datagrams on a Unix socket. An event is dropped if the socket is full or closed: reporting
never blocks training. The last one, why the rank ends, waits for a launcher that gets no processor.
"""

import json
import os
import socket
import struct
import time
from pathlib import Path
from typing import Any

SOCKET_ENV = "MEGATRON_TRAINER_EVENTS"
GENERATION_ENV = "MEGATRON_TRAINER_GENERATION"
RESUME_ENV = "MEGATRON_TRAINER_RESUME"
SKIP_ENV = "MEGATRON_TRAINER_SKIP"
LEASE_ENV = "MEGATRON_TRAINER_OWNER"
CPUS_ENV = "MEGATRON_TRAINER_CPUS"
PAIRS_ENV = "MEGATRON_TRAINER_PAIRS"
STACKS_ENV = "MEGATRON_TRAINER_STACKS"

# Megatron's own exit code (megatron.core.rerun_state_machine): a result must be recomputed on another GPU.
# Restarting the rank in the same pod would not help.
RESUME_ELSEWHERE = 16
# Exit code of a rank after the last iteration. Not 0, which a process that left too early also returns.
FINISHED = 99

FINISHING_SAVE = "finishing a save"
"""What a rank is busy with that completes an asynchronous save."""
MAX_EVENT_BYTES = 16 << 10
_MAX_UNWRITTEN_BYTES = 1 << 20
# Seconds for which a full socket is waited for: by an event, and by one after which the rank ends.
_PATIENCE, _LAST_PATIENCE = 0.2, 10.0
_LAST_EVENTS = frozenset({"failed", "finished"})


def wait_for_room(sender: socket.socket, seconds: float) -> None:
    """Let a socket wait so long for room in the receiver's queue, in the kernel.

    A time-out of Python's would try again and again: of a datagram socket that is not connected, poll looks
    at its own queue alone.
    """
    whole, rest = divmod(round(seconds * 1e6), 10**6)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", whole, rest))


class Reporter:
    """Sends one rank's events to its launcher. Without a socket in the environment it sends nothing."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.generation = int(os.environ.get(GENERATION_ENV, "0"))
        self._address = os.environ.get(SOCKET_ENV)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def send(self, event: str, **fields: Any) -> None:
        """Send `event` with `fields`, which must be JSON values. Never raises OSError."""
        if not self._address:
            return
        wait_for_room(self._socket, _LAST_PATIENCE if event in _LAST_EVENTS else _PATIENCE)
        message = {"event": event, "rank": self.rank, "generation": self.generation, "time": time.time()}
        message |= fields
        try:
            self._socket.sendto(json.dumps(message).encode()[:MAX_EVENT_BYTES], self._address)
        except OSError:
            return


class ProgressFile:
    """The run's progress.jsonl in the save directory. Exactly one rank of the run appends to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unwritten = b""
        self._ends_in_a_line = False

    def append(self, record: dict[str, Any]) -> None:
        """Append one line with the current time, in one write.

        What a full volume rejects is retried later.
        """
        line = json.dumps({**record, "time": time.time()}) + "\n"
        self._unwritten = (self._unwritten + line.encode())[-_MAX_UNWRITTEN_BYTES:]
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._drop_torn_line()
            with self._path.open("ab", buffering=0) as file:
                self._unwritten = self._unwritten[file.write(self._unwritten) or 0 :]
        except OSError as error:
            print(f"megatron-train: cannot append to {self._path}: {error.strerror}", flush=True)

    def _drop_torn_line(self) -> None:
        """Remove the part of a line that an earlier process wrote to a full volume before it ended.

        The next line would continue it, and both would be lost.
        """
        if self._ends_in_a_line:
            return
        if self._path.exists():
            with self._path.open("r+b") as file:
                size = file.seek(0, os.SEEK_END)
                start = file.seek(max(0, size - _MAX_UNWRITTEN_BYTES))
                end = file.read(size - start)
                if end and not end.endswith(b"\n"):
                    file.truncate(start + end.rfind(b"\n") + 1)
        self._ends_in_a_line = True
