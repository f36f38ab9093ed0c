"""The planning processes: a recipe whose planning never ends delays no other namespace."""

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
from megatron_operator.api.errors import PlanningLimitError
from megatron_operator.controller.plan_workers import PlanWorkers
from megatron_operator.planner.limits import PlanningLimits

NEVER_ENDS = range(10**15)
"""Its sum."""


@pytest.fixture
async def workers() -> AsyncIterator[PlanWorkers]:
    workers = PlanWorkers(PlanningLimits(cpu_seconds=0.2))
    yield workers
    await workers.stop()


async def test_calls_one_after_another_need_one_process(workers: PlanWorkers) -> None:
    found = [await workers.call(os.getpid, namespace=name) for name in "abca"]
    assert set(found) == set(workers.pids)
    assert len(workers.pids) == 1


async def test_calls_of_one_namespace_are_executed_by_one_process(workers: PlanWorkers) -> None:
    await asyncio.gather(*(workers.call(os.getpid, namespace="a") for _ in range(4)))
    assert len(workers.pids) == 1


async def test_other_namespaces_plan_while_the_planning_of_one_never_ends() -> None:
    workers = PlanWorkers(PlanningLimits(cpu_seconds=10_000))
    endless = [asyncio.ensure_future(workers.call(sum, NEVER_ENDS, namespace="a")) for _ in range(4)]
    for number in range(8):
        assert await workers.call(sum, range(4), namespace=f"other-{number}") == 6
    assert not any(each.done() for each in endless)
    for each in endless:
        each.cancel()
    await asyncio.gather(*endless, return_exceptions=True)
    assert await workers.call(sum, range(4), namespace="a") == 6
    await workers.stop()


async def test_a_call_waits_for_one_call_of_another_namespace_at_most() -> None:
    workers = PlanWorkers(PlanningLimits(cpu_seconds=0.2), processes=1)
    done: list[str] = []

    async def never_ends() -> None:
        with pytest.raises(PlanningLimitError):
            await workers.call(sum, NEVER_ENDS, namespace="a")
        done.append("a")

    async def ends() -> None:
        assert await workers.call(sum, range(4), namespace="b") == 6
        done.append("b")

    await asyncio.gather(*(never_ends() for _ in range(3)), ends())
    assert done == ["a", "b", "a", "a"]
    await workers.stop()


async def test_each_process_keeps_to_the_limits(workers: PlanWorkers) -> None:
    async def takes_memory(namespace: str) -> None:
        with pytest.raises(PlanningLimitError, match="160 MiB of memory"):
            await workers.call(bytearray, 2**34, namespace=namespace)

    await asyncio.gather(takes_memory("a"), takes_memory("b"))
    assert await asyncio.gather(*(workers.call(sum, range(4), namespace=name) for name in "ab")) == [6, 6]
