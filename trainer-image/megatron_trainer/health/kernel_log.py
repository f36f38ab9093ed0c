"""Xids of the driver in the kernel log of this pod's node, where the pod may read it."""

import contextlib
import os
from dataclasses import replace
from pathlib import Path

from megatron_contract.exit_codes import ExitCode
from megatron_contract.hardware import evidence_in_kernel_log

from megatron_trainer.termination import Ending

_RECORD_BYTES = 8192
# More than the largest log has: of a node with many cores it is a few MiB.
_MAX_RECORDS = 1 << 16


class KernelLog:
    """Reads what the kernel has logged since this object was created; nothing where that is not allowed."""

    def __init__(self, path: Path = Path("/dev/kmsg")) -> None:
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._file, 0, os.SEEK_END)
        self._text = ""

    def explain(self, ending: Ending) -> Ending:
        """Add the evidence of an Xid to the end of a rank that died or lost its device."""
        if ending.evidence is not None or ending.code != ExitCode.WORKER_DIED:
            return ending
        self._text = (self._text + self._read_new())[-_RECORD_BYTES:]
        evidence = evidence_in_kernel_log(self._text)
        if evidence is None:
            return ending
        line = next(line for line in reversed(self._text.splitlines()) if evidence_in_kernel_log(line))
        return replace(ending, message=f"{ending.message} ({line.rpartition(';')[2]})", evidence=evidence)

    def _read_new(self) -> str:
        parts = []
        for _ in range(_MAX_RECORDS if self._file is not None else 0):
            assert self._file is not None
            try:
                # One record of the log at a time; EAGAIN when there are no more.
                part = os.read(self._file, _RECORD_BYTES)
            except BrokenPipeError:
                # Records were overwritten before they were read. The oldest that is left follows.
                continue
            except OSError:
                break
            if not part:
                break
            parts.append(part.decode(errors="replace"))
        return "".join(parts)
