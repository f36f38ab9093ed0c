"""Synchronous callers of coroutines and asynchronous generators: values, and ends at odd places."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Iterator

import pytest
from megatron_operator.sdk.errors import ClusterUnreachableError
from megatron_operator.sdk.event_loop import EventLoopThread

FORKED = """
import asyncio, os, signal, sys
from megatron_operator.sdk.errors import ClusterUnreachableError
from megatron_operator.sdk.event_loop import EventLoopThread

thread = EventLoopThread()
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
signal.alarm(60)
try:
    thread.call(asyncio.sleep(0))
except ClusterUnreachableError:
    os._exit(0)
"""
"""Ends with 0 if a call in its child is an error."""


@pytest.fixture
def thread() -> Iterator[EventLoopThread]:
    thread = EventLoopThread()
    yield thread
    thread.stop()


class Numbers:
    """Counts without end, and notes when it is closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    async def count(self) -> AsyncGenerator[int]:
        try:
            for number in range(1_000_000):
                yield number
        finally:
            self.closed.set()


def test_a_generator_that_is_left_early_is_closed(thread: EventLoopThread) -> None:
    numbers = Numbers()
    for number in thread.iterate(numbers.count()):
        if number == 2:
            break
    assert numbers.closed.is_set()


def test_a_generator_that_is_collected_on_the_loops_thread_does_not_block_it(thread: EventLoopThread) -> None:
    numbers = Numbers()
    values = thread.iterate(numbers.count())
    assert next(values) == 0
    holding = [values]
    del values

    async def release() -> None:
        holding.clear()

    thread.call(release())
    numbers.closed.wait()


def test_a_generator_that_outlives_its_thread_ends_quietly() -> None:
    thread = EventLoopThread()
    values = thread.iterate(Numbers().count())
    assert next(values) == 0
    thread.stop()
    assert not thread.running
    values.close()  # type: ignore[attr-defined]


async def one() -> int:
    return 1


def test_a_call_of_a_thread_that_was_stopped_is_an_error(thread: EventLoopThread) -> None:
    assert thread.call(one()) == 1
    thread.stop()
    with pytest.raises(ClusterUnreachableError, match="the connection is closed"):
        thread.call(one())


def test_a_call_in_a_forked_process_is_an_error() -> None:
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], check=False)
    assert ended.returncode == 0


def test_a_call_that_waits_when_the_thread_is_stopped_is_an_error(thread: EventLoopThread) -> None:
    waiting, errors = threading.Event(), []

    async def wait() -> None:
        waiting.set()
        await asyncio.Event().wait()

    def call() -> None:
        with pytest.raises(ClusterUnreachableError) as raised:
            thread.call(wait())
        errors.append(raised.value)

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    waiting.wait()
    thread.stop()
    caller.join(60)
    assert len(errors) == 1
