"""Launchers, or other modules, forked from a process that has imported torch and Megatron.

These imports take longer than a test's training. A launcher and its fork server import the same modules, at
no cost here. The run that all others are compared with starts cold, by `python -m`.
"""

import gc
import importlib
import itertools
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any, NoReturn

LAUNCHER = "megatron_trainer.launcher.main"


class WarmProcess:
    """The process that forks launchers of `platform`.

    `environment` is added to its own; it imports `modules` last.
    """

    def __init__(
        self, platform: str = "cpu", environment: Mapping[str, str] | None = None, *modules: str
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, platform, *modules],
            env=os.environ | (environment or {}),
            bufsize=0,  # select() must see every message that is not read
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        self._codes: dict[int, int] = {}
        """The exit codes by number of the launcher: the kernel gives a process id again."""

    def start(
        self, flags: list[str], environment: dict[str, str], log: Path, module: str = LAUNCHER
    ) -> "WarmLauncher":
        """Fork a launcher, or another `module` that runs as a program, whose output is appended to `log`."""
        assert self._process.stdin is not None
        request = {"flags": flags, "environment": environment, "log": str(log), "module": module}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        while (launcher := self._receive()) is None:
            pass
        return launcher

    def exit_code(self, number: int, wait_seconds: float | None = 0.0) -> int | None:
        """Return a launcher's exit code, negative for a signal; None if it runs for `wait_seconds` more."""
        deadline = None if wait_seconds is None else time.monotonic() + wait_seconds
        while number not in self._codes:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            assert self._process.stdout is not None
            if not select.select([self._process.stdout], [], [], left)[0]:
                return None
            self._receive()
        return self._codes[number]

    def _receive(self) -> "WarmLauncher | None":
        """Read a message. Returns the launcher that was started, None for the end of one."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process that forks launchers has ended"
        message: dict[str, int] = json.loads(line)
        if "code" not in message:
            return WarmLauncher(self, message["number"], message["pid"])
        self._codes[message["number"]] = message["code"]
        return None

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class WarmLauncher:
    """What was forked, with those methods of subprocess.Popen that tests use."""

    def __init__(self, parent: WarmProcess, number: int, pid: int) -> None:
        self._parent, self._number, self.pid = parent, number, pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        return self._parent.exit_code(self._number)

    def wait(self, timeout: float | None = None) -> int:
        code = self._parent.exit_code(self._number, timeout)
        if code is None:
            raise subprocess.TimeoutExpired(LAUNCHER, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def import_all(platform: str, *modules: str) -> None:
    """Import what launchers and their fork servers import, with the environment that they have then."""
    warnings.simplefilter("ignore")
    os.environ.update(TORCH_CPP_LOG_LEVEL="ERROR", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    from megatron_trainer.launcher.warm_up import warm_up

    warm_up(platform, ["HuggingFaceTokenizer"] if platform == "cpu" else [])
    import megatron_trainer.health.hang_coordinator
    import megatron_trainer.launcher.agent
    import megatron_trainer.launcher.pod
    import megatron_trainer.rendezvous.store  # noqa: F401
    from megatron_trainer.platform import cpu

    # Its fork server need not do it again.
    cpu.install = lambda: None
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()


def run_module(flags: list[str], environment: dict[str, str], log: str, module: str) -> NoReturn:
    """In a forked process: do what `python -m` does after the imports."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for output in (1, 2):
            os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), output)
        os.closerange(3, 256)
        os.environ.clear()
        os.environ.update(environment)
        tempfile.tempdir = None
        if "TEST_FAULTS" in environment:
            from tests.trainer.inject import sitecustomize

            sitecustomize.disturb_imported()
        sys.argv[1:] = flags
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve(platform: str, *modules: str) -> None:
    """Fork a launcher for each line of stdin, and report starts and ends, until the end of stdin."""
    replies = os.dup(1)
    os.dup2(2, 1)
    import_all(platform, *modules)
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    requests = FileIO(0, closefd=False)
    numbers: dict[int, int] = {}
    started = itertools.count()

    def reply(message: dict[str, Any]) -> None:
        os.write(replies, json.dumps(message).encode() + b"\n")

    while True:
        ready, _, _ = select.select([requests.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            for pid, code in ended():
                reply({"number": numbers.pop(pid), "code": code})
        if requests.fileno() in ready:
            line = requests.readline()
            if not line:
                return
            pid = os.fork()
            if pid == 0:
                run_module(**json.loads(line))
            numbers[pid] = next(started)
            reply({"number": numbers[pid], "pid": pid})


def ended() -> list[tuple[int, int]]:
    """The launchers that have ended since the last call, and their exit codes."""
    found: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        found.append((pid, os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    serve(*sys.argv[1:])
