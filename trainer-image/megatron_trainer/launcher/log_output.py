"""Writes to the container's log without waiting for its reader.

The log is a pipe that other processes of the container write to as well, so that it must not become
non-blocking for them. Where nobody reads it, the newest output is kept for a reader that returns.
"""

import contextlib
import io
import os
import select
import stat
import sys
import threading
import time
from typing import Final

BUFFER_BYTES: Final = 1 << 20
"""Bytes that are kept for a log that is not read."""
END_SECONDS: Final = 1.0
"""How long the end of a process waits for the log to take the rest."""
_WRITE_BYTES: Final = select.PIPE_BUF
"""Bytes that a pipe takes at once when it is ready for writing."""


class LogOutput:
    """A buffer before a file descriptor. No method waits, except `drain` for a bounded time."""

    def __init__(
        self, descriptor: int = 2, most: int = BUFFER_BYTES, source: str = "the ranks' output"
    ) -> None:
        """`most`: bytes that are kept. `source`: whose output it is, for the line about what was dropped."""
        self._descriptor = _not_blocking(descriptor)
        self._most = most
        self._source = source
        self._notice = b""
        self._waiting = bytearray()
        self._dropped = 0
        self._in_line = False

    @property
    def waits(self) -> bool:
        """Whether there is something to write."""
        return bool(self._notice or self._waiting)

    def fileno(self) -> int:
        """The descriptor that is to become ready for writing."""
        return self._descriptor

    def add(self, data: bytes) -> None:
        """Write what the log takes, and keep the rest; the oldest lines are dropped for the newest."""
        self._waiting += data
        self.write()
        if (excess := len(self._waiting) - self._most) > 0:
            end_of_line = self._waiting.find(b"\n", excess - 1) + 1
            cut = end_of_line or excess
            del self._waiting[:cut]
            self._dropped += cut

    def write(self) -> None:
        """Write what the log takes."""
        while self._is_ready():
            if self._dropped and not self._notice:
                line = f"{self._dropped} bytes of {self._source} were dropped: the log was not read\n"
                self._notice = (b"\n" if self._in_line else b"") + line.encode()
                self._dropped = 0
            data = self._notice or self._waiting
            if not data:
                return
            try:
                written = os.write(self._descriptor, data[:_WRITE_BYTES])
            except BlockingIOError:
                return
            except OSError:
                # A log whose reader is gone does not end the ranks.
                self._notice, self._dropped = b"", 0
                self._waiting.clear()
                return
            self._in_line = data[written - 1] != ord("\n")
            if self._notice:
                self._notice = self._notice[written:]
            else:
                del self._waiting[:written]

    def drain(self, seconds: float) -> None:
        """Write the rest, as long as the log is read."""
        deadline = time.monotonic() + seconds
        while self.waits and (left := deadline - time.monotonic()) > 0:
            select.select([], [self._descriptor], [], left)
            self.write()

    def _is_ready(self) -> bool:
        return bool(select.select([], [self._descriptor], [], 0)[1])


class LogStream(io.TextIOBase):
    """A text stream before a LogOutput, for all threads of a process: no write waits for the log's reader.

    `descriptor` is the log's file descriptor, `most` the bytes that are kept.
    """

    encoding = "utf-8"

    def __init__(self, descriptor: int, most: int = BUFFER_BYTES) -> None:
        self._output = LogOutput(descriptor, most, "the launcher's output")
        # A signal handler may write while its own thread is writing.
        self._lock = threading.RLock()
        self._line = ""
        self._has_rest = threading.Event()
        threading.Thread(target=self._deliver, name=f"log-{descriptor}", daemon=True).start()

    def write(self, text: str) -> int:
        """Write what the log takes of the lines at once; the rest follows when it is read."""
        with self._lock:
            lines, end_of_line, self._line = (self._line + text).rpartition("\n")
            self._add(lines + end_of_line)
        return len(text)

    def flush(self) -> None:
        """Write a line that has no end yet too."""
        with self._lock:
            line, self._line = self._line, ""
            self._add(line)

    def _add(self, text: str) -> None:
        self._output.add(text.encode(errors="backslashreplace"))
        if self._output.waits:
            self._has_rest.set()

    def finish(self, seconds: float) -> None:
        """Write the rest, as long as the log is read, and at most so long."""
        with self._lock:
            self.flush()
            self._output.drain(seconds)

    def _deliver(self) -> None:
        while self._has_rest.wait():
            select.select([], [self._output.fileno()], [])
            with self._lock:
                self._output.write()
                if not self._output.waits:
                    self._has_rest.clear()


def replace_streams() -> None:
    """Have what Python writes to stdout and stderr of this process wait for no reader.

    Starts threads, so fork before.
    """
    streams = LogStream(1), LogStream(2)
    sys.stdout.flush()
    sys.stderr.flush()
    sys.stdout, sys.stderr = streams


def finish_streams() -> None:
    """Write the rest of what waits in replaced streams, as long as the log is read."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, LogStream):
            stream.finish(END_SECONDS)


def _not_blocking(descriptor: int) -> int:
    """The same pipe opened once more, non-blocking for this process alone; else the descriptor itself.

    Between the check and the write, another process may fill a pipe that cannot be opened again.
    """
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        with contextlib.suppress(OSError):
            return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    return descriptor
