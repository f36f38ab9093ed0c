"""A pod's access to the gang's store on the Master pod: the current generation and why it started.

The key `state` is authoritative: the generation, increased whenever ranks must stop and meet again, the
report of what made that necessary, and the verdict that ends the run in all pods. A store that does not
respond within OPERATION_TIMEOUT is lost. Imports no torch.
"""

import random
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from megatron_trainer.errors import TrainerError
from megatron_trainer.rendezvous.state import State
from megatron_trainer.rendezvous.store_channel import (
    LENGTH_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    Channel,
    ForgedMessageError,
    encode,
    message_length,
    new_nonce,
)
from megatron_trainer.rendezvous.store_server import StoreServer, is_shared
from megatron_trainer.telemetry.incidents import FailureReport, merge_reports
from megatron_trainer.termination import Ending

OPERATION_TIMEOUT = 5.0
_CONNECT_ATTEMPT = 2.0
_LONGEST_HANDSHAKE = 16.0
_RETRY_SECONDS = 0.3
_CHUNK = 1 << 16


class StoreLostError(TrainerError):
    """The store on the Master pod cannot be reached or does not respond."""


class _SlowStoreError(TrainerError):
    """The store accepted the connection and has not answered yet: a whole gang may be connecting."""


class _Connection:
    """A connection to the store. Raises OSError, EOFError or ForgedMessageError when it is lost.

    Creating one raises _SlowStoreError too.
    """

    def __init__(self, address: str, port: int, token: bytes, patience: float) -> None:
        """`patience`: seconds for the store's answers once it has accepted the connection."""
        self._socket = socket.create_connection((address, port), _CONNECT_ATTEMPT)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._received = bytearray()
            deadline = time.monotonic() + patience
            theirs, ours = self._take(NONCE_BYTES, deadline), new_nonce()
            self._channel = Channel(token, theirs, ours, host=False)
            self._socket.sendall(ours + self._channel.proof)
            try:
                proof = self._take(PROOF_BYTES, deadline)
            except (EOFError, ConnectionError):
                raise ForgedMessageError("it refused this pod's token") from None
            self._channel.check_proof(proof)
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    @property
    def peer(self) -> str:
        """The address of the other end."""
        return str(self._socket.getpeername()[0])

    def send(self, message: dict[str, Any]) -> None:
        """Send a message."""
        self._socket.settimeout(OPERATION_TIMEOUT)
        self._socket.sendall(self._channel.seal(encode(message)))

    def receive(self, deadline: float) -> dict[str, Any] | None:
        """Return the next message; None if there is none by `deadline` (monotonic seconds)."""
        head = LENGTH_BYTES + PROOF_BYTES
        if not self._fill(head, deadline):
            return None
        length = message_length(bytes(self._received[:LENGTH_BYTES]))
        if not self._fill(head + length, deadline):
            return None
        code, text = self._received[LENGTH_BYTES:head], self._received[head : head + length]
        del self._received[: head + length]
        return self._channel.unseal(bytes(code), bytes(text))

    def _take(self, size: int, deadline: float) -> bytes:
        if not self._fill(size, deadline):
            raise _SlowStoreError("no response in time to the connection")
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    def _fill(self, size: int, deadline: float) -> bool:
        """Receive until there are `size` bytes; False if there are not by `deadline`."""
        while len(self._received) < size:
            self._socket.settimeout(max(deadline - time.monotonic(), 0))
            try:
                data = self._socket.recv(_CHUNK)
            except (BlockingIOError, TimeoutError):
                return False
            if not data:
                raise EOFError("the connection was closed")
            self._received += data
        return True


class GangStore:
    """A client of the store, for one thread; on node rank 0 also its server while the launcher lives.

    Every method that talks to the store raises StoreLostError when it does not respond.
    """

    def __init__(
        self, address: str, port: int, host: bool, initial: State | None = None, token: bytes = b""
    ) -> None:
        """`initial`: the state that a new server starts with, generation 1 by default.

        Only pods with the same `token` can use the store; an empty one keeps nobody out.
        """
        self._address, self._port, self._host = address, port, host
        self._initial = initial or State(1)
        self._token = token
        self._server: StoreServer | None = None
        self._connection: _Connection | None = None
        self._shared: dict[str, str] = {}
        self._parsed: tuple[str, State] | None = None
        self._answers: dict[int, Any] = {}
        self._waits: dict[tuple[str, int], int] = {}
        self._requests = 0
        # When the store was found to be lost, Unix seconds; None if it is not.
        self.lost_at: float | None = None

    @property
    def connected(self) -> bool:
        """Whether there is a connection that has not failed."""
        return self._connection is not None

    @property
    def host_address(self) -> str | None:
        """The address of the Master pod, by the connection. None on that pod itself, or without one."""
        if self._host or self._connection is None:
            return None
        try:
            return self._connection.peer
        except OSError:
            return None

    @property
    def requests(self) -> int:
        """Number of requests that were sent to the store."""
        return self._requests

    def connect(self, deadline: float, stop: Callable[[], bool]) -> None:
        """Connect by name, with retries until `deadline` (monotonic seconds) or until `stop` returns True.

        The Master pod may start minutes later and its name may not resolve yet. Raises StoreLostError.
        """
        problem = "not tried"
        patience = _CONNECT_ATTEMPT
        while time.monotonic() < deadline and not stop():
            try:
                self._open(patience)
            except (OSError, EOFError, ForgedMessageError, StoreLostError, _SlowStoreError) as error:
                self.disconnect()
                problem = str(error) or type(error).__name__
                if isinstance(error, _SlowStoreError):
                    # An attempt that is given up costs the store as much as another.
                    patience = min(patience * 2, _LONGEST_HANDSHAKE)
                time.sleep(_RETRY_SECONDS * random.uniform(0.5, 1.5))
                continue
            return
        raise StoreLostError(f"no store at {self._address}:{self._port}: {problem}")

    def _open(self, patience: float) -> None:
        if self._host and self._server is None:
            self._server = StoreServer(self._port, self._token, {"state": self._initial.dumps()})
        address = "localhost" if self._host else self._address
        self._connection = _Connection(address, self._port, self._token, patience)
        self._shared, self._answers, self._waits = {}, {}, {}
        deadline = time.monotonic() + OPERATION_TIMEOUT
        while "state" not in self._shared:
            self._receive(deadline, required=True)

    def disconnect(self) -> None:
        """Drop the connection. A server in this process keeps running."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _lost(self, problem: str) -> StoreLostError:
        self.lost_at = self.lost_at or time.time()
        self.disconnect()
        return StoreLostError(problem)

    def _open_connection(self) -> _Connection:
        if self._connection is None:
            raise StoreLostError(f"not connected to {self._address}:{self._port}")
        return self._connection

    def _receive(self, deadline: float, *, required: bool = False) -> bool:
        """Read the next message, a response or a change of a shared key. False if there is none."""
        try:
            message = self._open_connection().receive(deadline)
        except (OSError, EOFError, ForgedMessageError, ValueError) as error:
            raise self._lost(f"{self._address}:{self._port}: {error}") from error
        if message is None:
            if required:
                where = f"{self._address}:{self._port}"
                raise self._lost(f"no response from {where} for {OPERATION_TIMEOUT:.0f} s")
            return False
        if "values" in message:
            self._shared |= message["values"]
        else:
            self._answers[message["id"]] = message["value"]
        return True

    def _send(self, **request: Any) -> int:
        self._requests += 1
        try:
            self._open_connection().send({"id": self._requests, **request})
        except OSError as error:
            raise self._lost(f"{self._address}:{self._port}: {error}") from error
        return self._requests

    def _call(self, **request: Any) -> Any:
        number = self._send(**request)
        deadline = time.monotonic() + OPERATION_TIMEOUT
        while number not in self._answers:
            self._receive(deadline, required=True)
        return self._answers.pop(number)

    def _read_changes(self) -> None:
        while self._receive(0):
            pass

    # All operations below raise StoreLostError.

    def set(self, key: str, value: str) -> None:
        """Set `key`."""
        self.set_all({key: value})

    def set_all(self, values: dict[str, str]) -> None:
        """Set several keys in one operation."""
        self._call(op="set", values=values)

    def get(self, key: str) -> str | None:
        """Return the value of `key`, None if it is not set. A shared key costs no operation."""
        if is_shared(key):
            self._read_changes()
            return self._shared.get(key)
        value = self._call(op="get", key=key)
        return None if value is None else str(value)

    def children(self, parent: str) -> dict[str, str]:
        """Return the values of all keys `parent/x` by x. Costs one operation for each page of them."""
        found: dict[str, str] = {}
        more = True
        while more:
            page, more = self._call(op="children", parent=parent, start=len(found))
            found |= page
        return found

    def reached(self, parent: str, count: int) -> bool:
        """Return whether there are `count` keys `parent/x`. Asks the store only once."""
        number = self._waits.get((parent, count))
        if number is None:
            number = self._waits[(parent, count)] = self._send(op="wait", parent=parent, count=count)
        self._read_changes()
        return number in self._answers

    def set_if_absent(self, key: str, value: str) -> str:
        """Set `key` unless it is set, and return its value."""
        return str(self._call(op="swap", key=key, expected=None, value=value))

    def state(self) -> State:
        """Return the gang's state. Costs no operation: the store sends every change."""
        self._read_changes()
        text = self._shared["state"]
        if self._parsed is None or self._parsed[0] != text:
            self._parsed = text, State.loads(text)
        return self._parsed[1]

    def wait(self, seconds: float) -> None:
        """Wait until the store sends something, an answer or a change of a shared key, at most `seconds`."""
        self._receive(time.monotonic() + seconds)

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
        self._call(op="swap", key="state", expected=old.dumps(), value=new.dumps())
