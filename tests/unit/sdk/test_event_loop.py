"""Synchronous callers of asynchronous generators: values, early ends, and ends at odd places."""

import threading
from collections.abc import AsyncGenerator, Iterator

import pytest
from megatron_operator.sdk.event_loop import EventLoopThread


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
