"""The trackers of a run, each a process of node 0's launcher, so none delays a step of the ranks.

Their memory is the container's. Where its limit is reached, the kernel's OOM killer ends the whole container
(memory.oom.group of cgroup v2, which the kubelet sets), whichever process it chose.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from megatron_contract.tracking import Tracking

from megatron_trainer.tracking import wandb_run

END_SECONDS: Final = {"finished": 30.0, "failed": 10.0, "stopped": 3.0}
"""How the run ended -> how long its end waits for trackers. A pod that is stopped has 10 s after its save."""
_KILL_SECONDS: Final = 2.0
"""For a killed process to go; one that waits for a volume that does not respond may stay."""
_RESTART_SECONDS: Final = 30.0


def why_absent(tracking: Tracking) -> str | None:
    """Return which tracker this image cannot run, None if it has all."""
    if tracking.wandb is not None and not wandb_run.is_installed():
        return (
            "spec.tracking.wandb: this image lacks the package wandb; install requirements-tracking.txt of "
            f"trainer-image into {wandb_run.PACKAGES}, or leave the field out"
        )
    return None


class TrackingProcesses:
    """Starts trackers, restarts one that dies, and has them record the rest when the run ends."""

    def __init__(
        self, tracking: Tracking, save: Path, arguments: Sequence[str], log: Callable[[str], None]
    ) -> None:
        self._arguments = [str(save), *arguments]
        self._log = log
        self._ended = threading.Event()
        self._ending: str | None = None
        self._deadline = 0.0
        self._threads = [
            threading.Thread(target=self._keep, args=(name,), name=f"tracking-{name}", daemon=True)
            for name in tracking.trackers
        ]

    def start(self) -> None:
        """Start all of them."""
        for thread in self._threads:
            thread.start()

    def close(self, ending: str | None, stopping: Callable[[], bool] = lambda: False) -> None:
        """Name the ending of the run, wait for what they still record, and kill those that take longer.

        `ending`: a key of END_SECONDS; None kills them at once, for another pod continues their runs. Once
        `stopping()` is true they have no longer than a pod that is stopped. Returns in bounded time.
        """
        self._ending = ending
        self._deadline = time.monotonic() + END_SECONDS.get(ending or "", 0.0)
        self._ended.set()
        shortened = False
        while any(thread.is_alive() for thread in self._threads):
            if stopping() and not shortened:
                shortened = True
                self._deadline = min(self._deadline, time.monotonic() + END_SECONDS["stopped"])
            if time.monotonic() > self._deadline + 2 * _KILL_SECONDS:
                return
            for thread in self._threads:
                thread.join(0.1)

    def _keep(self, name: str) -> None:
        while not self._ended.is_set():
            try:
                process = self._start(name)
            except OSError as error:
                self._log(f"{name}: the tracker cannot be started: {error}; this is retried")
                self._ended.wait(_RESTART_SECONDS)
                continue
            while process.poll() is None and not self._ended.wait(0.5):
                pass
            if self._ended.is_set():
                self._finish(name, process)
                return
            self._log(f"{name}: the tracker ended with {process.returncode}; it is restarted")
            self._ended.wait(_RESTART_SECONDS)

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "megatron_trainer.tracking.command", name, *self._arguments]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    def _finish(self, name: str, process: subprocess.Popen[bytes]) -> None:
        started = time.monotonic()
        if self._ending is not None:
            # Standard input stays open: its end would be the launcher's death.
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.write(f"{self._ending}\n".encode())
                process.stdin.flush()
            while process.poll() is None and time.monotonic() < self._deadline:
                time.sleep(0.05)
        if process.poll() is not None:
            return
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_SECONDS)
        if self._ending is not None:
            seconds = time.monotonic() - started
            self._log(f"{name}: not all is recorded {seconds:.0f} s after the end of the run")
