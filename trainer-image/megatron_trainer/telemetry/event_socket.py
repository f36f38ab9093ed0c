"""Receives the events of a pod's ranks."""

import itertools
import json
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from megatron_trainer.telemetry.reporter import MAX_EVENT_BYTES, wait_for_room

_LONGEST_DRAIN: Final = 10.0
"""Seconds."""
_MARK: Final = "mark"


class EventSocket:
    """A Unix socket in a private directory under the temporary directory; calls `apply` for each event."""

    def __init__(self, apply: Callable[[dict[str, Any]], None]) -> None:
        self._apply = apply
        self._directory = tempfile.TemporaryDirectory(prefix="megatron-")
        self.address = str(Path(self._directory.name) / "events")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self._socket.bind(self.address)
        self._numbers = itertools.count()
        self._marks: dict[int, threading.Event] = {}

    @property
    def folder(self) -> Path:
        """The private directory."""
        return Path(self._directory.name)

    def start(self) -> None:
        """Receive events on a daemon thread."""
        threading.Thread(target=self._listen, daemon=True, name="rank-events").start()

    def drain(self) -> None:
        """Return once the listening thread has applied all events that have arrived.

        A rank's last one is needed before its exit is classified, and the thread may have taken it from the
        socket and not applied it yet. So a mark is sent after it, which that thread reaches last.
        """
        number, reached = next(self._numbers), threading.Event()
        self._marks[number] = reached
        deadline = time.monotonic() + _LONGEST_DRAIN
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                wait_for_room(sender, _LONGEST_DRAIN)
                sender.sendto(json.dumps({_MARK: number}).encode(), self.address)
            if not reached.wait(deadline - time.monotonic()):
                raise TimeoutError(f"they are not read within {_LONGEST_DRAIN:.0f} s")
        except OSError as error:
            print(f"megatron-train: events of the ranks may be missing: {error}", file=sys.stderr, flush=True)
        finally:
            del self._marks[number]

    def _listen(self) -> None:
        while True:
            try:
                data = self._socket.recv(MAX_EVENT_BYTES)
            except OSError:
                return
            self._handle(data)

    def _handle(self, data: bytes) -> None:
        try:
            event = json.loads(data)
            if _MARK not in event:
                self._apply(event)
            elif (reached := self._marks.get(event[_MARK])) is not None:
                reached.set()
        except (ValueError, KeyError, TypeError):
            # Cut at MAX_EVENT_BYTES, or not an event (WireError for a value): later ones must arrive.
            return

    def close(self) -> None:
        """Stop receiving and remove the directory."""
        self._socket.close()
        self._directory.cleanup()
