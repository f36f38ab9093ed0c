"""The processes of a measurement: what they use, and the progress of pods that do not exist."""

import asyncio
import json
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

TICKS: Final = os.sysconf("SC_CLK_TCK")
QUIET_SAMPLES: Final = 3
"""Seconds in succession of little use, after which an operator is quiet."""
MARGIN: Final = 0.05
"""Cores above the idle use that count as little."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process and its children have used."""

    cpu: float
    """Seconds of processor time since the start."""
    rss: int
    """Bytes in memory."""


def usage(pid: int) -> Usage:
    """The usage of a process and its children. Raises OSError when it does not exist."""
    pids = [pid, *(int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    cpu, rss = 0.0, 0
    for each in pids:
        stat = Path(f"/proc/{each}/stat").read_text()
        fields = stat[stat.rindex(")") + 2 :].split()
        cpu += (int(fields[11]) + int(fields[12])) / TICKS
        rss += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return Usage(cpu, rss)


@dataclass(frozen=True, slots=True)
class Load:
    """What everything on the machine has used, in seconds of processor time since some moment."""

    server: float
    """The API server."""
    all: float

    @classmethod
    def now(cls, server: int) -> "Load":
        """Since the start, with the API server's process id."""
        user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
        return cls(usage(server).cpu, (user + nice + system + irq + softirq) / TICKS)

    def since(self, before: "Load") -> "Load":
        """What has been used since `before`."""
        return Load(self.server - before.server, self.all - before.all)


def cores(pid: int, seconds: float) -> float:
    """Cores that a process uses over the next seconds."""
    before, began = usage(pid).cpu, time.monotonic()
    time.sleep(seconds)
    return (usage(pid).cpu - before) / (time.monotonic() - began)


def until_quiet(pid: int, idle: float, limit: float) -> float | None:
    """Seconds until a process uses no more than `idle` cores and MARGIN; None when not within `limit`."""
    began, since, calm = time.monotonic(), 0.0, 0
    while time.monotonic() - began < limit:
        sampled = time.monotonic() - began
        if cores(pid, 1.0) <= idle * 1.5 + MARGIN:
            since = sampled if calm == 0 else since
            calm += 1
            if calm == QUIET_SAMPLES:
                return since
        else:
            calm = 0
    return None


class FakePods:
    """Answers /progress of all pods: each run makes one iteration a second."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="pods")
        self._began = time.time()
        self._frozen: float | None = None
        self.changes: dict[str, dict[str, Any]] = {}
        """Pod -> what it reports differently."""
        self._thread.start()
        server = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/{{pod}}"
        self._server = server

    async def _start(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=4096)

    def freeze(self) -> None:
        """All runs stand still from now on, if they do not yet."""
        self._frozen = self._frozen or time.time()

    def move(self) -> None:
        """All runs go on."""
        self._frozen = None

    @property
    def iteration(self) -> int:
        """The iteration of all runs."""
        return int((self._frozen or time.time()) - self._began)

    def report(self, pod: str) -> dict[str, Any] | None:
        """The report of a pod; None of one that does not answer."""
        return {
            "schema": 1,
            "phase": "training",
            "generation": 1,
            "rankRestarts": 0,
            "iteration": self.iteration,
            "trainIters": 1_000_000,
            "stepSeconds": 1.0,
            **self.changes.get(pod, {}),
        }

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
            pod = request.split()[1].decode().strip("/")
            report = self.report(pod)
            status = b"503 Service Unavailable" if report is None else b"200 OK"
            writer.write(b"HTTP/1.0 " + status + b"\r\n\r\n" + json.dumps(report or {}).encode())
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def stop(self) -> None:
        """Stop serving."""
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
