"""The gang's store: a torch TCPStore on the Master pod with the current generation and why it started.

The key `state` is authoritative: the generation, increased whenever ranks must stop and meet again, the
report of what made that necessary, and the verdict that ends the run in all pods. A store that does not
respond within OPERATION_TIMEOUT is lost. Every operation runs on a separate thread, since torch's client
blocks forever on a peer that vanished without closing its connection.
"""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore

from megatron_trainer.errors import TrainerError
from megatron_trainer.rendezvous.state import State
from megatron_trainer.telemetry.incidents import FailureReport, merge_reports
from megatron_trainer.termination import Ending

OPERATION_TIMEOUT = 5.0
_CONNECT_ATTEMPT = 2.0
_RETRY_SECONDS = 0.3


class StoreLostError(TrainerError):
    """The store on the Master pod cannot be reached or does not respond."""


class GangStore:
    """A client of the store; on node rank 0 also its server, for as long as the launcher lives."""

    def __init__(self, address: str, port: int, host: bool, initial: State | None = None) -> None:
        """`initial`: the state that a new server starts with, generation 1 by default."""
        self._address, self._port, self._host = address, port, host
        self._initial = initial or State(1)
        self._server: TCPStore | None = None
        self._client: TCPStore | None = None
        self._work: queue.Queue[tuple[Callable[[], Any], Future[Any]]] = queue.Queue()
        # When the store was found to be lost, Unix seconds; None if it is not.
        self.lost_at: float | None = None

    @property
    def connected(self) -> bool:
        """Whether there is a connection that has not failed."""
        return self._client is not None

    def connect(self, deadline: float, stop: Callable[[], bool]) -> None:
        """Connect by name, with retries until `deadline` (monotonic seconds) or until `stop` returns True.

        The Master pod may start minutes later and its name may not resolve yet. Raises StoreLostError.
        """
        problem = "not tried"
        while time.monotonic() < deadline and not stop():
            try:
                self._client = self._open()
            except Exception as error:  # torch raises many types, all of which mean: not reachable yet
                problem = " ".join(str(error).split())[:200]
                time.sleep(_RETRY_SECONDS)
                continue
            self._work = queue.Queue()
            threading.Thread(target=_serve, args=(self._work,), daemon=True, name="gang-store").start()
            return
        raise StoreLostError(f"no store at {self._address}:{self._port}: {problem}")

    def _open(self) -> TCPStore:
        if not self._host:
            return TCPStore(
                self._address, self._port, is_master=False, timeout=timedelta(seconds=_CONNECT_ATTEMPT)
            )
        if self._server is None:
            self._server = TCPStore(
                "localhost",
                self._port,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=_CONNECT_ATTEMPT),
            )
            self._server.compare_set("state", "", self._initial.dumps())
        return self._server

    def disconnect(self) -> None:
        """Drop the connection. A server in this process keeps running."""
        self._client = None

    def _lose(self) -> None:
        self.lost_at = self.lost_at or time.time()
        self.disconnect()

    def _call(self, operation: Callable[[TCPStore], Any]) -> Any:
        client = self._client
        if client is None:
            raise StoreLostError(f"not connected to {self._address}:{self._port}")
        future: Future[Any] = Future()
        self._work.put((lambda: operation(client), future))
        try:
            return future.result(timeout=OPERATION_TIMEOUT)
        except FutureTimeout as error:
            self._lose()
            raise StoreLostError(
                f"no response from {self._address}:{self._port} for {OPERATION_TIMEOUT:.0f} s"
            ) from error
        except Exception as error:
            self._lose()
            raise StoreLostError(" ".join(str(error).split())[:200]) from error

    # All operations below raise StoreLostError.

    def set(self, key: str, value: str) -> None:
        """Set `key`."""
        self._call(lambda store: store.set(key, value))

    def get(self, key: str) -> str | None:
        """Return the value of `key`, None if it is not set. Does not wait for it."""
        value = self._call(lambda store: store.get(key) if store.check([key]) else None)
        return None if value is None else value.decode()

    def has(self, keys: list[str]) -> bool:
        """Return whether all of `keys` are set."""
        return bool(self._call(lambda store: store.check(keys)))

    def set_if_absent(self, key: str, value: str) -> str:
        """Set `key` unless it is set, and return its value."""
        return str(self._call(lambda store: store.compare_set(key, "", value)).decode())

    def state(self) -> State:
        """Return the gang's state."""
        return State.loads(self._call(lambda store: store.get("state")).decode())

    def advance(self, generation: int, report: FailureReport) -> State:
        """Start the generation after `generation`, unless another pod has. Returns the state then.

        A second caller adds to the report until all pods have met in the new generation. A store younger than
        this process, on a replaced Master pod, is brought up to the count.
        """
        while True:
            state = self.state()
            met = self.get(f"plan/{state.generation}") is not None
            known = None if met else state.report
            if state.generation > generation:
                desired = state if met else replace(state, report=merge_reports(known, report))
                if desired == state:
                    return state
            else:
                desired = State(generation + 1, merge_reports(known, report), state.verdict)
            self._swap(state, desired)

    def request_stacks(self, generation: int, folder: str) -> None:
        """Request the stacks of all ranks from their launchers, once per generation."""
        state = self.state()
        if state.generation == generation and state.hang is None:
            self._swap(state, replace(state, hang=folder))

    def end_run(self, verdict: Ending) -> None:
        """End the run in all pods. The first verdict stays."""
        while (state := self.state()).verdict is None:
            self._swap(state, State(state.generation + 1, state.report, verdict))

    def _swap(self, old: State, new: State) -> None:
        self._call(lambda store: store.compare_set("state", old.dumps(), new.dumps()))


def _serve(work: "queue.Queue[tuple[Callable[[], Any], Future[Any]]]") -> None:
    while True:
        operation, future = work.get()
        try:
            future.set_result(operation())
        except BaseException as error:
            future.set_exception(error)
            return
