"""The store of the gang: a torch TCPStore on the Master pod that holds which generation is due, and why.

One key, `state`, is the truth: the generation, counted up whenever ranks must stop and meet again, the
report of what made that necessary, and the verdict that ends the run everywhere. A store that does not
answer within OPERATION_TIMEOUT is lost. Every operation runs on one thread of its own, since torch's client
waits for ever on a peer that vanished without closing its connection.
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

from megatron_trainer.launcher.termination import Ending
from megatron_trainer.rendezvous.state import State
from megatron_trainer.telemetry.incidents import Report, merge

OPERATION_TIMEOUT = 5.0
_CONNECT_ATTEMPT = 2.0


class StoreLost(Exception):
    """The store on the Master pod is not there, or does not answer."""


class GangStore:
    """A client of the store; on node rank 0 also its server, for as long as the launcher lives."""

    def __init__(self, address: str, port: int, host: bool, first: State | None = None) -> None:
        """`first`: the state that the server begins with, generation 1 unless it is given."""
        self._address, self._port, self._host = address, port, host
        self._first = first or State(1)
        self._server: TCPStore | None = None
        self._client: TCPStore | None = None
        self._work: queue.Queue[tuple[Callable[[], Any], Future[Any]]] = queue.Queue()
        # When it was found to be lost, unix seconds; None while it was not.
        self.lost_at: float | None = None

    @property
    def connected(self) -> bool:
        return self._client is not None

    def connect(self, deadline: float, stop: Callable[[], bool]) -> None:
        """Connect by name, again and again until `deadline` (monotonic seconds) or until `stop` says so.

        The Master pod may start minutes later and its name may not resolve yet. Raises StoreLost.
        """
        problem = "not tried"
        while time.monotonic() < deadline and not stop():
            try:
                self._client = self._open()
            except Exception as error:  # torch raises many kinds, all of them mean: not there yet
                problem = " ".join(str(error).split())[:200]
                time.sleep(0.3)
                continue
            self._work = queue.Queue()
            threading.Thread(target=_serve, args=(self._work,), daemon=True, name="gang-store").start()
            return
        raise StoreLost(f"no store at {self._address}:{self._port}: {problem}")

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
            self._server.compare_set("state", "", self._first.dumps())
            self._server.set("progress", "{}")
        return self._server

    def disconnect(self) -> None:
        """Let go of the connection. The server, if it is here, stays."""
        self._client = None

    def _lose(self) -> None:
        self.lost_at = self.lost_at or time.time()
        self.disconnect()

    def _call(self, operation: Callable[[TCPStore], Any]) -> Any:
        client = self._client
        if client is None:
            raise StoreLost(f"not connected to {self._address}:{self._port}")
        future: Future[Any] = Future()
        self._work.put((lambda: operation(client), future))
        try:
            return future.result(timeout=OPERATION_TIMEOUT)
        except FutureTimeout as error:
            self._lose()
            raise StoreLost(
                f"no answer from {self._address}:{self._port} for {OPERATION_TIMEOUT:.0f} s"
            ) from error
        except Exception as error:
            self._lose()
            raise StoreLost(" ".join(str(error).split())[:200]) from error

    def set(self, key: str, value: str) -> None:
        self._call(lambda store: store.set(key, value))

    def get(self, key: str) -> str | None:
        """The value of `key`, None if nobody has set it. Never waits for it."""
        value = self._call(lambda store: store.get(key) if store.check([key]) else None)
        return None if value is None else value.decode()

    def has(self, keys: list[str]) -> bool:
        """Whether all of `keys` are set."""
        return bool(self._call(lambda store: store.check(keys)))

    def enter(self, key: str, value: str) -> str:
        """Set `key` if nobody has, and return what it holds then."""
        return str(self._call(lambda store: store.compare_set(key, "", value)).decode())

    def state(self) -> State:
        return State.loads(self._call(lambda store: store.get("state")).decode())

    def move(self, generation: int, report: Report) -> State:
        """Begin the generation after `generation`, unless somebody has. Returns the state then.

        Who comes second adds to the report, for as long as the new generation has not met. A store younger
        than this process, on a replaced Master pod, is brought up to the count.
        """
        while True:
            state = self.state()
            met = self.get(f"plan/{state.generation}") is not None
            known = None if met else state.report
            if state.generation > generation:
                wanted = state if met else replace(state, report=merge(known, report))
                if wanted == state:
                    return state
            else:
                wanted = State(generation + 1, merge(known, report), state.verdict)
            self._swap(state, wanted)

    def found_hanging(self, generation: int, folder: str) -> None:
        """Have all launchers write down the stacks of their ranks, once in a generation."""
        state = self.state()
        if state.generation == generation and state.hang is None:
            self._swap(state, replace(state, hang=folder))

    def judge(self, verdict: Ending) -> None:
        """End the run everywhere. The first verdict stays."""
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
