"""The trackers of a run, each a process of node 0's launcher: none can stop or delay the ranks."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from megatron_contract.tracking import Tracking

from megatron_trainer.tracking import wandb_run

END_SECONDS: Final = {"finished": 30.0, "failed": 10.0, "stopped": 3.0}
"""How the run ended -> how long its end waits for trackers. A pod that is stopped has 10 s after its save."""
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
        self._ending = "stopped"
        self._threads = [
            threading.Thread(target=self._keep, args=(name,), name=f"tracking-{name}", daemon=True)
            for name in tracking.trackers
        ]

    def start(self) -> None:
        """Start all of them."""
        for thread in self._threads:
            thread.start()

    def close(self, ending: str) -> None:
        """Name the ending of the run, wait for what they still record, and kill those that take longer."""
        self._ending = ending
        self._ended.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def _keep(self, name: str) -> None:
        while not self._ended.is_set():
            process = self._start(name)
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
        try:
            # Standard input stays open: its end would be the launcher's death.
            assert process.stdin is not None
            process.stdin.write(f"{self._ending}\n".encode())
            process.stdin.flush()
            process.wait(END_SECONDS[self._ending])
        except BrokenPipeError:
            process.wait()
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            seconds = time.monotonic() - started
            self._log(f"{name}: not all is recorded {seconds:.0f} s after the end of the run")
