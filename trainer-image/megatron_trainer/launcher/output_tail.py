"""What a child writes to stdout and stderr: passed on unchanged, and the last of it kept.

An error that a C++ thread does not catch, such as that of torch's NCCL watchdog, ends a rank by SIGABRT. Its
text is on stderr alone.
"""

import os
from collections.abc import Callable
from typing import Final

TAIL_BYTES: Final = 8 << 10
"""What is kept: more than an error of torch with the stack of its C++ frames."""
_CHUNK_BYTES: Final = 64 << 10
_LAST_CHUNKS: Final = 16
"""Reads after the end of a rank: what a pipe holds, and no more of a child of it that still writes."""


class OutputTail:
    """A pipe that is stdout or stderr of a child process. The reader never waits."""

    def __init__(self, pass_on: Callable[[bytes], None]) -> None:
        self._pass_on = pass_on
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        self._tail = b""

    @property
    def file(self) -> int:
        """The descriptor to read from when it is ready; -1 once it is closed."""
        return self._reading

    def become(self, descriptor: int) -> None:
        """In the child: this pipe is its descriptor 1 or 2 from now on."""
        os.dup2(self._writing, descriptor)
        self.close_writing()
        self.close()

    def close_writing(self) -> None:
        """In the parent: have the end of the child be the end of the pipe."""
        os.close(self._writing)

    def read(self) -> bool:
        """Pass on what is there, at most one chunk. False if there is nothing."""
        if self._reading < 0:
            return False
        try:
            data = os.read(self._reading, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        self._pass_on(data)
        return True

    def finish(self) -> str:
        """Pass on the rest, close the pipe and return the tail."""
        for _ in range(_LAST_CHUNKS):
            if not self.read():
                break
        self.close()
        return self._tail.decode(errors="replace")

    def close(self) -> None:
        """Stop reading; in a child, which inherits the pipes of others."""
        if self._reading >= 0:
            os.close(self._reading)
            self._reading = -1
