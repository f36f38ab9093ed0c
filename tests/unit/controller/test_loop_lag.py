"""The event loop's lag: measured, and not caused by planning."""

import asyncio
import time

import pytest
from megatron_operator.api.errors import PlanningLimitError
from megatron_operator.controller.loop_lag import measure_loop_lag
from megatron_operator.controller.plan_worker import PlanWorker
from prometheus_client import REGISTRY

NAME = "megatron_operator_event_loop_lag_seconds"


def measurements(above: float | None = None) -> float:
    """How often the lag was measured, or measured to be above a bound."""
    whole = REGISTRY.get_sample_value(f"{NAME}_count") or 0
    if above is None:
        return whole
    return whole - (REGISTRY.get_sample_value(f"{NAME}_bucket", {"le": str(above)}) or 0)


async def until_measured(times: int) -> None:
    goal = measurements() + times
    while measurements() < goal:
        await asyncio.sleep(0.01)


async def test_blocking_the_loop_is_measured() -> None:
    task = asyncio.create_task(measure_loop_lag())
    await until_measured(1)
    before = measurements(above=0.25)
    # The only task that is due is the measurement; it is late by what remains of this second.
    time.sleep(1)
    await until_measured(1)
    assert measurements(above=0.25) > before
    task.cancel()


async def test_the_lag_is_measured_while_a_recipe_is_planned_that_never_ends() -> None:
    worker = PlanWorker()
    await worker.call(len, ())
    task = asyncio.create_task(measure_loop_lag())
    plan = asyncio.ensure_future(worker.call(sum, range(10**15)))
    await until_measured(5)
    assert not plan.done(), "the loop measured five times before the plan was stopped"
    with pytest.raises(PlanningLimitError):
        await plan
    task.cancel()
    await worker.stop()
