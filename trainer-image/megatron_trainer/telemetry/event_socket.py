"""Receives the events of a pod's ranks."""

import json
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from megatron_trainer.telemetry.reporter import MAX_EVENT_BYTES


class EventSocket:
    """A Unix socket in a private directory under the temporary directory; calls `apply` for each event."""

    def __init__(self, apply: Callable[[dict[str, Any]], None]) -> None:
        self._apply = apply
        self._directory = tempfile.TemporaryDirectory(prefix="megatron-")
        self.address = str(Path(self._directory.name) / "events")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self._socket.bind(self.address)

    @property
    def folder(self) -> Path:
        """The private directory."""
        return Path(self._directory.name)

    def start(self) -> None:
        """Receive events on a daemon thread."""
        threading.Thread(target=self._listen, daemon=True, name="rank-events").start()

    def drain(self) -> None:
        """Apply the events that have arrived: a rank's last one is needed before its exit is classified."""
        self._socket.setblocking(False)
        try:
            while True:
                self._handle(self._socket.recv(MAX_EVENT_BYTES))
        except BlockingIOError:
            return
        finally:
            self._socket.setblocking(True)

    def _listen(self) -> None:
        while True:
            try:
                data = self._socket.recv(MAX_EVENT_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                return
            self._handle(data)

    def _handle(self, data: bytes) -> None:
        try:
            self._apply(json.loads(data))
        except ValueError:
            # Cut at MAX_EVENT_BYTES, or with a value of the wrong type (WireError): later events must arrive.
            return

    def close(self) -> None:
        """Stop receiving and remove the directory."""
        self._socket.close()
        self._directory.cleanup()
