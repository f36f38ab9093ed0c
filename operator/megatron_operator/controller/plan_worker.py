"""A process beside the operator that plans, so that no recipe can block or exhaust the operator itself."""

import asyncio
import contextlib
import logging
import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final
from weakref import WeakValueDictionary

from megatron_operator.api.errors import FieldError, OperatorError, PlanningLimitError
from megatron_operator.controller.plan_messages import LENGTH, Call, Reply, frame
from megatron_operator.lifecycle.desired import Config
from megatron_operator.planner.limits import PlanningLimits, memory_limit_error, time_limit_error

log = logging.getLogger(__name__)

WALL_SECONDS: Final = 60.0
"""A process that has not answered after this time, however little it could run, is replaced."""
IDLE_SECONDS: Final = 60.0
"""A process that has had no call for this time is ended: it takes a fifth of the memory of an
operator with 1,000 runs that train, which need no plan."""
ATTEMPTS: Final = 2
"""Somebody else may have killed the process: the call is repeated in a new one."""
LARGEST_REPLY: Final = 4 * 2**20
"""Bytes; reading more would block the event loop."""
_PROGRAM: Final = (sys.executable, "-P", "-m", "megatron_operator.controller.plan_process")


class _ProcessEndedError(OperatorError):
    """The process ended during a call, with this return code."""


class PlanWorker:
    """Executes calls one after another in one process, which runs while it is needed and `idle_seconds` more,
    or until `stop` where that is None.

    A namespace has one call in the queue at most, so that one namespace cannot keep the others waiting.
    """

    def __init__(
        self,
        limits: PlanningLimits | None = None,
        wall_seconds: float = WALL_SECONDS,
        idle_seconds: float | None = IDLE_SECONDS,
    ) -> None:
        self.limits = limits or PlanningLimits()
        self.wall_seconds = wall_seconds
        self.idle_seconds = idle_seconds
        self._idle: asyncio.TimerHandle | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._config: Config | None = None
        self._sent: Config | None = None
        self._pickled = b""

    @property
    def pid(self) -> int | None:
        """Process id, if a process runs."""
        return None if self._process is None else self._process.pid

    async def call(
        self, function: Callable[..., Any], *arguments: Any, config: Config | None = None, namespace: str = ""
    ) -> Any:
        """The result of `function(*arguments)`, or of `function(*arguments, config)`.

        Raises the function's exception, PlanningLimitError where it exceeds the limits, and TimeoutError
        where the process does not answer.
        """
        turn = self._turns.setdefault(namespace, asyncio.Lock())
        async with turn, self._turn:
            with self._in_use():
                return await self._call(function, arguments, config)

    async def _call(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], config: Config | None
    ) -> Any:
        """Call it in the process, and once more where that was killed."""
        for attempt in range(ATTEMPTS):
            try:
                async with asyncio.timeout(self.wall_seconds):
                    reply = await self._exchange(function, arguments, config)
            except _ProcessEndedError as ended:
                code = ended.args[0]
                if code == -signal.SIGPROF:
                    raise time_limit_error(self.limits) from None
                if code in (-signal.SIGABRT, -signal.SIGSEGV):
                    # Extensions end the process where an allocation fails.
                    raise memory_limit_error(self.limits) from None
                log.warning("the planning process ended with %s (attempt %s)", code, attempt + 1)
                continue
            except BaseException:
                # Its answer would be taken for that of the next call.
                self._kill()
                raise
            return self._result(reply)
        message = f"the planning process was killed {ATTEMPTS} times while it planned it"
        raise PlanningLimitError([FieldError("spec", message, "check the memory of the operator's pod")])

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        """Let the process run, and for `idle_seconds` more."""
        self._stop_timer()
        try:
            yield
        finally:
            if self.idle_seconds is not None:
                self._idle = asyncio.get_running_loop().call_later(self.idle_seconds, self._kill)

    def _stop_timer(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    async def stop(self) -> None:
        """End the process."""
        self._stop_timer()
        process = self._process
        self._kill()
        if process is not None:
            await process.wait()

    def _result(self, reply: Reply) -> Any:
        if reply.out_of_memory:
            self._kill()
            raise memory_limit_error(self.limits)
        if reply.invalid is not None:
            raise reply.invalid
        if reply.error is not None:
            raise reply.error
        return reply.result

    async def _exchange(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], config: Config | None
    ) -> Reply:
        """One call and its reply. Raises _ProcessEndedError."""
        process = await self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        new_config = None
        if config is not None and config is not self._sent:
            new_config, self._sent = self._pickle(config), config
        try:
            process.stdin.write(frame(Call(function, arguments, config is not None, new_config)))
            await process.stdin.drain()
            (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
            if length > LARGEST_REPLY:
                self._kill()
                return Reply(out_of_memory=True)
            reply: Reply = pickle.loads(await process.stdout.readexactly(length))
            return reply
        except (asyncio.IncompleteReadError, ConnectionError):
            self._process = None
            raise _ProcessEndedError(await process.wait()) from None

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._sent = None
            self._process = await asyncio.create_subprocess_exec(
                *_PROGRAM,
                str(self.limits.cpu_seconds),
                str(self.limits.memory_bytes),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        return self._process

    def _pickle(self, config: Config) -> bytes:
        if config is not self._config:
            self._config, self._pickled = config, pickle.dumps(config, pickle.HIGHEST_PROTOCOL)
        return self._pickled

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
