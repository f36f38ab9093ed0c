"""Processes that outlive the command that started them, identified by PID, start time and boot.

A PID may be reused before it is signalled, so a record also holds the start time in clock ticks after boot
(field 22 of /proc/PID/stat) and the id of the boot.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from localcluster.errors import ClusterError

OWNER_VARIABLE = "MEGATRON_LOCAL_CLUSTER"
"""Set to the profile's folder in each process: finds processes that were started but not recorded."""


@dataclass(frozen=True)
class Record:
    """One started process."""

    name: str
    pid: int
    start_time: int
    boot: str
    argv: list[str]


def boot_id() -> str:
    """The kernel's random id of the current boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_time(pid: int) -> int | None:
    """Start time of `pid` in clock ticks after boot; None when it is gone or a zombie.

    A process whose first thread is a zombie may have other threads, which keep its sockets open.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat[stat.rindex(")") + 2 :].split()
    return None if state in "ZX" and threads <= 1 else int(fields[18])


def owned_pids(home: Path) -> list[int]:
    """PIDs of all processes that are marked with `home`."""
    mark = f"{OWNER_VARIABLE}={home}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if mark in environment.split(b"\0"):
            found.append(int(entry.name))
    return found


def _without_proxies() -> dict[str, str]:
    """The caller's environment without proxies, which must not be used for the cluster's addresses."""
    return {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}


def wait_until(
    done: Callable[[], bool], seconds: float, what: str, alive: Callable[[], bool] | None = None
) -> None:
    """Poll `done` until it is true.

    Raises ClusterError naming `what` after `seconds`, or at once when `alive` turns false.
    """
    deadline = time.monotonic() + seconds
    while not done():
        if alive is not None and not alive():
            raise ClusterError(f"{what}: the process ended")
        if time.monotonic() > deadline:
            raise ClusterError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.05)


def http_ok(url: str, context: ssl.SSLContext | None = None) -> bool:
    """Whether a GET is answered with 200 within two seconds; proxies are not used."""
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        with opener.open(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


class Processes:
    """The processes of one profile. Records are in `home/processes`, output in `home/logs`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.records = home / "processes"
        self.logs = home / "logs"
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def record(self, name: str) -> Record | None:
        """The record of a process; None where there is none."""
        path = self.records / f"{name}.json"
        try:
            return Record(**json.loads(path.read_text()))
        except (FileNotFoundError, json.JSONDecodeError):
            return None

    def names(self) -> list[str]:
        """Names of all recorded processes."""
        return sorted(path.stem for path in self.records.glob("*.json"))

    def running(self, name: str) -> bool:
        """Whether the recorded process is alive."""
        if (child := self._children.get(name)) is not None:
            child.poll()
        record = self.record(name)
        return record is not None and record.boot == boot_id() and start_time(record.pid) == record.start_time

    def argv(self, name: str) -> list[str] | None:
        """The recorded command line; None without a record."""
        record = self.record(name)
        return record.argv if record else None

    def start(
        self, name: str, argv: Sequence[str | Path], environment: Mapping[str, str] | None = None
    ) -> int:
        """Start `argv` in a new session, unless it is running. Returns the PID.

        Raises ClusterError when the program cannot be executed.
        """
        if self.running(name) and (record := self.record(name)):
            return record.pid
        self.records.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        args = [str(word) for word in argv]
        with (self.logs / f"{name}.log").open("ab") as log:
            try:
                child = subprocess.Popen(
                    args,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={**_without_proxies(), **(environment or {}), OWNER_VARIABLE: str(self.home)},
                )
            except OSError as error:
                raise ClusterError(f"{name}: cannot start {args[0]}: {error.strerror}") from error
        began = start_time(child.pid)
        if began is None:
            raise ClusterError(f"{name} ended at once; see its output in {self.logs / name}.log")
        record = Record(name, child.pid, began, boot_id(), args)
        self._write(record)
        self._children[name] = child
        return child.pid

    def _write(self, record: Record) -> None:
        path = self.records / f"{record.name}.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(record)))
        partial.rename(path)

    def kill(self, name: str) -> None:
        """Kill the process with SIGKILL and delete its record. No error when it is gone.

        Raises ClusterError when it does not end.
        """
        record = self.record(name)
        if record is not None and self.running(name):
            os.kill(record.pid, signal.SIGKILL)
            wait_until(lambda: not self.running(name), 20, f"{name} to end")
        self._children.pop(name, None)
        (self.records / f"{name}.json").unlink(missing_ok=True)

    def live_pids(self) -> set[int]:
        """PIDs of every recorded process that runs and of every marked process, with or without a record."""
        live = {record.pid for name in self.names() if self.running(name) and (record := self.record(name))}
        return live | set(owned_pids(self.home))

    def kill_all(self) -> None:
        """Kill the processes of `live_pids`. Raises ClusterError when one of them does not end."""
        pids = self.live_pids() - {os.getpid()}
        began = {pid: start_time(pid) for pid in pids}
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

        def gone() -> bool:
            for child in self._children.values():
                child.poll()
            return all(start_time(pid) != began[pid] or began[pid] is None for pid in pids)

        wait_until(gone, 20, "all processes to end")
        self._children.clear()
        for name in self.names():
            (self.records / f"{name}.json").unlink(missing_ok=True)

    def tail(self, name: str, lines: int = 15) -> str:
        """The last lines of the process's output, for an error message."""
        path = self.logs / f"{name}.log"
        if not path.exists():
            return ""
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
