"""The fork server: a process that has imported torch and Megatron and forks ranks from itself.

A forked rank reaches its first step about a second later; a cold one imports for several seconds first. The
process has one thread, so that a fork copies no lock that another thread holds, and has not used CUDA, which
does not survive a fork (where that fails, ranks start cold). Each rank leads its own session. When a rank
ends, so does everything it started: its process group is killed, and orphans are reparented to this process
(it is a subreaper) and reaped. When the launcher dies, its socket closes and this process kills all ranks and
exits.
"""

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from megatron_contract.exit_codes import ExitCode

from megatron_trainer.errors import TrainerError
from megatron_trainer.health.stacks import SIGNAL as STACKS_SIGNAL
from megatron_trainer.launcher.cpu_binding import parse_cpus
from megatron_trainer.launcher.log_output import END_SECONDS, LogOutput
from megatron_trainer.launcher.output_tail import OutputTail
from megatron_trainer.telemetry.reporter import CPUS_ENV

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_MAX_MESSAGE_BYTES = 256 << 10
_STOP_SECONDS = 30.0
_CLOSE_POLL_SECONDS = 0.02

_OUTPUT = (1, 2)
"""The descriptors that are the container's log."""

# Key of the child that checks the flags, before any pod waits for another.
PREFLIGHT = -1
# Keys of the children of the preflight: those that check devices, and pairs of nodes, are these numbers less
# the local rank.
FIRST_DEVICE_CHECK = -2
FIRST_PAIR_CHECK = -2000


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


@dataclass(frozen=True)
class Programs:
    """What forked children run. Each returns its exit code.

    A command, where there is one, is executed after the fork instead.
    """

    rank: Callable[[], int]
    preflight: Callable[[], int]
    cold_rank: list[str] | None = None
    cold_preflight: list[str] | None = None
    device_check: Callable[[], int] | None = None
    pair_check: Callable[[], int] | None = None
    cold_device_check: list[str] | None = None
    cold_pair_check: list[str] | None = None

    def of(self, key: int) -> tuple[Callable[[], int] | None, list[str] | None]:
        """The program of the child with this key and the command to execute instead, if there is one."""
        if key >= 0:
            return self.rank, self.cold_rank
        if key == PREFLIGHT:
            return self.preflight, self.cold_preflight
        if key > FIRST_PAIR_CHECK:
            return self.device_check, self.cold_device_check
        return self.pair_check, self.cold_pair_check


class ForkServerLostError(TrainerError):
    """The fork server died, most likely out of memory, or cannot kill its ranks."""


class ForkServer:
    """The launcher's handle on the fork server."""

    def __init__(self, warm_up: Callable[[], Programs]) -> None:
        """Fork the process and run `warm_up` in it. The caller must have one thread."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            self._control.close()
            _Server(theirs).run(warm_up)
        theirs.close()
        self._exited: dict[int, int] = {}
        self._stderr: dict[int, str] = {}
        self._pids: dict[int, int] = {}

    def start(self, environments: dict[int, dict[str, str]]) -> dict[int, int]:
        """Fork one child per key (local rank, PREFLIGHT, or of a check) with its environment.

        Returns process ids by key. Raises ForkServerLostError.
        """
        self._exited.clear()
        self._stderr.clear()
        self._send({"do": "start", "environments": {str(key): env for key, env in environments.items()}})
        self._pids = {int(key): pid for key, pid in self._await("started")["pids"].items()}
        return self.pids

    @property
    def pids(self) -> dict[int, int]:
        """Process ids of the children that were started last."""
        return dict(self._pids)

    def last_stderr(self, key: int) -> str:
        """The last of what the child with this key wrote to stderr, if it failed by itself; else empty."""
        return self._stderr.get(key, "")

    def stop(self) -> None:
        """Kill all children and everything that they started, wait until they are gone, and forget them.

        Raises ForkServerLostError if one of them cannot be killed: its driver or volume does not respond.
        """
        self._send({"do": "stop"})
        self._await("stopped", time.monotonic() + _STOP_SECONDS)
        for known in (self._exited, self._stderr, self._pids):
            known.clear()

    def signal(self, number: int) -> None:
        """Send a signal to the children, not to what they started. Raises ForkServerLostError."""
        self._send({"do": "signal", "number": number})

    def exited(self, wait_seconds: float) -> dict[int, int]:
        """Wait up to `wait_seconds`; return the exit codes of ended children by key (negative: a signal).

        Raises ForkServerLostError.
        """
        while select.select([self._control], [], [], wait_seconds)[0]:
            self._record_exit(self._receive())
            wait_seconds = 0
        return dict(self._exited)

    def close(self) -> None:
        """End the process and with it all children."""
        self._control.close()
        deadline = time.monotonic() + _STOP_SECONDS
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(self.pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
                time.sleep(_CLOSE_POLL_SECONDS)

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._control.send(json.dumps(message).encode())
        except (BrokenPipeError, ConnectionResetError):
            raise ForkServerLostError("the fork server has died") from None

    def _receive(self) -> dict[str, Any]:
        data = b""
        with contextlib.suppress(ConnectionResetError):  # it had not read every request
            data = self._control.recv(_MAX_MESSAGE_BYTES)
        if not data:
            raise ForkServerLostError("the fork server has died")
        return json.loads(data)  # type: ignore[no-any-return]

    def _record_exit(self, message: dict[str, Any]) -> None:
        if message["is"] == "exited" and self._pids.get(message["key"]) in (None, message["pid"]):
            self._exited[message["key"]] = message["code"]
            self._stderr[message["key"]] = message.get("stderr", "")

    def _await(self, what: str, deadline: float | None = None) -> dict[str, Any]:
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._control], [], [], left)[0]:
                raise ForkServerLostError(f"a rank could not be killed within {_STOP_SECONDS:.0f} s")
            message = self._receive()
            if message["is"] == what:
                return message
            if what != "started":
                self._record_exit(message)


class _Server:
    """The fork server itself."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, int] = {}
        self._output: dict[int, dict[int, OutputTail]] = {}
        """The pipes of each child, by the descriptor that it writes to."""
        self._logs = {descriptor: LogOutput(descriptor) for descriptor in _OUTPUT}

    def run(self, warm_up: Callable[[], Programs]) -> NoReturn:
        """Serve requests until the launcher closes the socket."""
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        # The launcher decides which process gets SIGTERM and when; ^C in a terminal is for the launcher
        # alone.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Ranks inherit it, cold ones too: the request must not kill one that hangs before it has its handler.
        signal.signal(STACKS_SIGNAL, signal.SIG_IGN)
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            programs = warm_up()
            gc.collect()
            gc.freeze()
            while True:
                tails = {tail.file: tail for tail in self._tails() if tail.file >= 0}
                logs = [log for log in self._logs.values() if log.waits]
                ready, take_more, _ = select.select([self._control.fileno(), wake_read, *tails], logs, [])
                for log in take_more:
                    log.write()
                for file in tails.keys() & set(ready):
                    tails[file].read()
                if wake_read in ready:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake_read, 4096)
                    self._reap()
                if self._control.fileno() in ready:
                    message = self._control.recv(_MAX_MESSAGE_BYTES)
                    if not message:
                        break
                    self._handle(json.loads(message), programs)
        except BaseException:
            # The launcher sees a closed socket alone.
            traceback.print_exc()
        finally:
            self._kill_all()
            sys.stdout.flush()
            sys.stderr.flush()
            for log in self._logs.values():
                log.drain(END_SECONDS)
            os._exit(0)

    def _tails(self) -> list[OutputTail]:
        return [tail for tails in self._output.values() for tail in tails.values()]

    def _handle(self, request: dict[str, Any], programs: Programs) -> None:
        if request["do"] == "start":
            pids = {}
            for key, environment in request["environments"].items():
                pids[key] = self._fork(int(key), environment, programs)
            self._reply({"is": "started", "pids": pids})
        elif request["do"] == "stop":
            self._kill_all()
            self._reply({"is": "stopped"})
        elif request["do"] == "signal":
            for pid in self._children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, request["number"])

    def _fork(self, key: int, environment: dict[str, str], programs: Programs) -> int:
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        tails = {descriptor: OutputTail(log.add) for descriptor, log in self._logs.items()}
        pid = os.fork()
        if pid:
            self._children[pid] = key
            for tail in tails.values():
                tail.close_writing()
            self._output[pid] = tails
            return pid
        code = int(ExitCode.WORKER_DIED)
        try:
            self._control.close()
            for other in self._tails():
                other.close()
            for descriptor, tail in tails.items():
                tail.become(descriptor)
            os.setsid()
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(0)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            os.environ.update(environment)
            _bind(environment.get(CPUS_ENV, ""))
            program, command = programs.of(key)
            if command:
                os.execv(command[0], command)
            assert program is not None, f"no program for {key}"
            code = program()
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._report_exit(pid, status)

    def _report_exit(self, pid: int, status: int) -> None:
        key = self._children.pop(pid, None)
        if key is None:
            return
        _kill_group(pid)
        code, tails = os.waitstatus_to_exitcode(status), self._output.pop(pid)
        stderr = [tails[descriptor].finish() for descriptor in _OUTPUT][-1]
        reply = {"is": "exited", "key": key, "pid": pid, "code": code}
        # Nothing in it explains the others, nor an end by SIGKILL.
        self._reply(reply if code in (0, -signal.SIGKILL) else reply | {"stderr": stderr})

    def _kill_all(self) -> None:
        for pid in self._children:
            _kill_group(pid)
            # One that was just forked leads no group yet.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # What left the group does not wait for a reader while this waits for its end.
        for tail in self._tails():
            tail.finish()
        while True:
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                return
            self._report_exit(pid, status)

    def _reply(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._control.send(json.dumps(message).encode())


def _bind(cpus: str) -> None:
    """Keep this process, and what it starts, on these cores."""
    if cpus:
        # A core may have been taken from the pod meanwhile.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, parse_cpus(cpus))


def _kill_group(leader: int) -> None:
    """Kill the session that a rank leads: checkpoint workers, resource trackers, data loaders."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
