"""New recipes have places of their own in the work queue, and go before what can wait."""

import asyncio
from collections import defaultdict

from megatron_operator.controller.workqueue import NORMAL, STARTS, URGENT, WorkQueue
from megatron_operator.lifecycle.status_builder import RecipeKey

from tests.unit.controller.test_workqueue import A, B, C, drain


class Gate:
    """Reconciles that begin, and end once they are let go."""

    def __init__(self, *starts: RecipeKey) -> None:
        self.begun: list[RecipeKey] = []
        self._open: defaultdict[RecipeKey, asyncio.Event] = defaultdict(asyncio.Event)
        self.queue = WorkQueue(self._reconcile, workers=1, is_start=starts.__contains__)
        self.queue.start()

    async def _reconcile(self, key: RecipeKey) -> None:
        self.begun.append(key)
        await self._open[key].wait()

    def let_go(self, key: RecipeKey) -> None:
        self._open[key].set()

    async def queued(self, key: RecipeKey, patience: float) -> None:
        """Queue a key, and give its reconcile the turns of the loop in which it could begin."""
        self.queue.add(key, 0, patience)
        async with asyncio.timeout(5):
            while key in self.queue._timers:
                await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)


async def test_starts_do_not_wait_for_the_workers_of_others_and_are_limited_themselves() -> None:
    starts = [RecipeKey("default", f"start-{number}") for number in range(STARTS + 1)]
    gate = Gate(*starts)
    await gate.queued(A, URGENT)
    for key in starts:
        await gate.queued(key, URGENT)
    assert gate.begun == [A, *starts[: STARTS - 1]]
    gate.let_go(A)
    await drain(gate.begun, STARTS + 1)
    await gate.queue.stop()


async def test_while_many_start_only_what_is_urgent_or_has_waited_long_is_reconciled() -> None:
    gate = Gate(A)
    await gate.queued(A, URGENT)
    await gate.queued(B, NORMAL)
    assert gate.begun == [A]
    await gate.queued(C, URGENT)
    assert gate.begun == [A, C]
    gate.let_go(C)
    for _ in range(20):
        await asyncio.sleep(0)
    assert gate.begun == [A, C]
    gate.let_go(A)
    await drain(gate.begun, 3)
    assert gate.begun == [A, C, B]
    await gate.queue.stop()
