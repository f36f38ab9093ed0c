"""What the launcher knows of the run, as /progress tells it. Fed by rank events and by the agent."""

import json
import socket
import tempfile
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from megatron_contract.progress import PROGRESS_SCHEMA

from megatron_trainer.telemetry.reporter import MAX_EVENT_BYTES

ITERATION_FIELDS = (
    "iteration",
    "trainIters",
    "lmLoss",
    "learningRate",
    "stepSeconds",
    "tokensPerSecond",
    "tflopsPerGpu",
    "consumedSamples",
)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Status:
    """The run as this pod sees it. Safe to use from several threads; unknown values are None."""

    def __init__(self, node_rank: int, train_iters: int | None) -> None:
        self._lock = threading.Lock()
        self._fields: dict[str, Any] = {
            "schema": PROGRESS_SCHEMA,
            "phase": "starting",
            "nodeRank": node_rank,
            "generation": None,
            "rankRestarts": 0,
            **dict.fromkeys(ITERATION_FIELDS),
            "trainIters": train_iters,
            "checkpointIteration": None,
            "checkpointTime": None,
            "resumedFrom": None,
            "startedAt": _now(),
            "updatedAt": _now(),
            "message": "",
            "incidents": [],
            "warnings": [],
            "usefulSeconds": None,
            "firstStartedAt": None,
        }
        self._step_at: float | None = None
        self._loaded_at: float | None = None
        self._failures: dict[int, dict[str, Any]] = {}

    def set(self, **fields: Any) -> None:
        with self._lock:
            self._fields.update(fields, updatedAt=_now())

    def set_quietly(self, **fields: Any) -> None:
        """Set what is told of the run as a whole: no news of this pod, so `updatedAt` stays."""
        with self._lock:
            self._fields.update(fields)

    def warn(self, reason: str, message: str | None) -> None:
        """Set the warning of `reason`, or clear it with None."""
        with self._lock:
            others = [each for each in self._fields["warnings"] if each["reason"] != reason]
            new = [] if message is None else [{"reason": reason, "message": message}]
            self._fields["warnings"] = others + new

    def get(self, name: str) -> Any:
        with self._lock:
            return self._fields[name]

    def snapshot(self) -> dict[str, Any]:
        """The body of /progress."""
        with self._lock:
            return dict(self._fields)

    def figures(self) -> dict[str, Any]:
        """The last iteration's figures, the generation that did it, and when it was done (unix seconds)."""
        with self._lock:
            names = ("generation", *ITERATION_FIELDS)
            return {name: self._fields[name] for name in names} | {"time": self._step_at}

    @property
    def loaded_at(self) -> float | None:
        """When the last rank here that has loaded was done with it, in this generation; unix seconds."""
        with self._lock:
            return self._loaded_at

    def begin(self, generation: int, resumed_from: int | None) -> None:
        """A generation's ranks are about to start."""
        with self._lock:
            self._failures.clear()
            self._loaded_at = self._step_at = None
        self.set(phase="loading", generation=generation, resumedFrom=resumed_from)

    def failures(self) -> dict[int, dict[str, Any]]:
        """What ranks of this generation said about their own end, by global rank."""
        with self._lock:
            return dict(self._failures)

    def apply(self, event: dict[str, Any]) -> None:
        """Take in one event of a rank. Events of ranks of an earlier generation are dropped."""
        if event["generation"] != self.get("generation") and event["event"] != "failed":
            return
        kind = event["event"]
        if kind == "phase":
            self.set(phase=event["phase"])
        elif kind == "saved":
            self.set(phase="training")
        elif kind == "iteration":
            self.learn(event)
        elif kind == "loaded":
            with self._lock:
                self._loaded_at = max(event["time"], self._loaded_at or 0.0)
        elif kind == "failed":
            with self._lock:
                self._failures[event["rank"]] = event

    def learn(self, record: dict[str, Any]) -> None:
        """Take in the figures of an iteration, from a rank here or, through the store, from another pod."""
        with self._lock:
            newest = self._fields["iteration"]
            if newest is not None and record["iteration"] < newest and self._fields["phase"] == "training":
                return
            known = {name: record[name] for name in ITERATION_FIELDS if record.get(name) is not None}
            if record["iteration"] != newest and "lmLoss" not in known:
                known["lmLoss"] = None
            self._fields.update(known, phase="training", updatedAt=_now())
            self._step_at = record.get("time")

    def checkpoint(self, iteration: int | None, written: float | None) -> None:
        """The newest whole checkpoint is that of `iteration`, written at `written` (unix seconds)."""
        time = None
        if written is not None:
            time = datetime.fromtimestamp(written, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        self.set(checkpointIteration=iteration, checkpointTime=time)


class EventSocket:
    """Receives what the pod's ranks report, on a Unix socket in a private directory under the temporary
    one."""

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
        threading.Thread(target=self._listen, daemon=True, name="rank-events").start()

    def drain(self) -> None:
        """Take in what has arrived, so that a dead rank's last words are known before its end is judged."""
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
            event = json.loads(data)
        except ValueError:
            return
        self._apply(event)

    def close(self) -> None:
        self._socket.close()
        self._directory.cleanup()


def written_at(path: Path) -> float | None:
    """When a checkpoint directory was finished: the time of its metadata, unix seconds."""
    try:
        return (path / "metadata.json").stat().st_mtime
    except OSError:
        return None
