"""The planning process: what exceeds its limits or kills it ends one call, and the next one works."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import psutil
import pytest
from megatron_operator.api.errors import PlanningLimitError
from megatron_operator.controller.plan_worker import LARGEST_REPLY, PlanWorker
from megatron_operator.planner.limits import PlanningLimits

NEVER_ENDS = range(10**15)
"""Its sum."""


@pytest.fixture
async def worker() -> AsyncIterator[PlanWorker]:
    worker = PlanWorker(PlanningLimits(cpu_seconds=0.2))
    yield worker
    await worker.stop()


async def test_calls_are_executed_in_one_process(worker: PlanWorker) -> None:
    first = await worker.call(os.getpid)
    assert first == await worker.call(os.getpid) == worker.pid != os.getpid()


async def test_an_error_of_the_function_is_raised_with_its_origin(worker: PlanWorker) -> None:
    with pytest.raises(ValueError, match="invalid literal") as caught:
        await worker.call(int, "x")
    assert "in the planning process" in caught.value.__notes__[0]
    assert await worker.call(int, "7") == 7


async def test_a_call_that_never_ends_is_stopped(worker: PlanWorker) -> None:
    with pytest.raises(PlanningLimitError, match=r"spec: planning it was stopped after 0.2 s of processor"):
        await worker.call(sum, NEVER_ENDS)
    assert await worker.call(sum, range(4)) == 6


async def test_a_call_that_takes_too_much_memory_is_stopped(worker: PlanWorker) -> None:
    with pytest.raises(PlanningLimitError, match="spec: planning it was stopped at 160 MiB of memory"):
        await worker.call(bytearray, 2**34)
    assert await worker.call(sum, range(4)) == 6


async def test_a_result_that_is_too_large_is_not_read(worker: PlanWorker) -> None:
    with pytest.raises(PlanningLimitError, match="memory"):
        await worker.call(bytes, LARGEST_REPLY)
    assert await worker.call(sum, range(4)) == 6


async def test_a_process_that_was_killed_between_calls_is_replaced(worker: PlanWorker) -> None:
    killed = await worker.call(os.getpid)
    os.kill(killed, signal.SIGKILL)
    assert await worker.call(os.getpid) != killed


async def test_a_process_that_is_killed_during_a_call_is_replaced_and_the_call_repeated() -> None:
    worker = PlanWorker()
    first = await worker.call(os.getpid)
    call = asyncio.ensure_future(worker.call(sum, range(3 * 10**7)))
    await asyncio.sleep(0)
    os.kill(first, signal.SIGKILL)
    assert await call == sum(range(3 * 10**7))
    assert worker.pid != first
    await worker.stop()


async def test_a_process_that_is_not_needed_for_some_time_is_ended_and_the_next_call_starts_one() -> None:
    worker = PlanWorker(idle_seconds=0.0)
    first = psutil.Process(await worker.call(os.getpid))
    await asyncio.to_thread(first.wait, 60)
    assert worker.pid is None
    assert await worker.call(os.getpid) != first.pid
    await worker.stop()


async def test_a_call_keeps_the_process_that_would_be_ended() -> None:
    worker = PlanWorker(idle_seconds=0.0)
    first = await worker.call(os.getpid)
    assert await worker.call(os.getpid) == first
    await worker.stop()


async def test_a_call_that_kills_the_process_every_time_is_given_up(worker: PlanWorker) -> None:
    with pytest.raises(PlanningLimitError, match="spec: the planning process was killed 2 times"):
        await worker.call(os._exit, 9)
    assert await worker.call(sum, range(4)) == 6


async def test_a_cancelled_call_does_not_answer_the_next_one(worker: PlanWorker) -> None:
    await worker.call(len, ())
    call = asyncio.ensure_future(worker.call(sum, NEVER_ENDS))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert await worker.call(sum, range(4)) == 6


async def test_a_process_that_does_not_answer_is_replaced(worker: PlanWorker) -> None:
    stopped = await worker.call(os.getpid)
    os.kill(stopped, signal.SIGSTOP)
    usual, worker.wall_seconds = worker.wall_seconds, 0.1
    with pytest.raises(TimeoutError):
        await worker.call(os.getpid)
    worker.wall_seconds = usual
    assert await worker.call(os.getpid) != stopped


async def test_the_event_loop_turns_while_a_call_is_executed(worker: PlanWorker) -> None:
    call = asyncio.ensure_future(worker.call(sum, NEVER_ENDS))
    ticks = 0
    while not call.done():
        await asyncio.sleep(0)
        ticks += 1
    assert isinstance(call.exception(), PlanningLimitError)
    assert ticks > 100


async def test_a_namespace_with_many_calls_does_not_keep_another_one_waiting(worker: PlanWorker) -> None:
    done: list[str] = []

    async def call(namespace: str) -> None:
        with pytest.raises(PlanningLimitError):
            await worker.call(sum, NEVER_ENDS, namespace=namespace)
        done.append(namespace)

    await asyncio.gather(*(call("many") for _ in range(4)), call("one"))
    assert done.index("one") <= 1


async def test_the_configuration_is_sent_when_it_has_changed(worker: PlanWorker) -> None:
    config, other = [1, 2], [1, 2, 3]
    assert await worker.call(len, config=config) == 2  # type: ignore[arg-type]
    config.append(0)
    assert await worker.call(len, config=config) == 2, "the process has it"  # type: ignore[arg-type]
    assert await worker.call(len, config=other) == 3  # type: ignore[arg-type]
    os.kill(worker.pid or 0, signal.SIGKILL)
    assert await worker.call(len, config=other) == 3, "a new process gets it"  # type: ignore[arg-type]
