"""Urgent keys are served first, and none waits forever."""

import asyncio
from dataclasses import dataclass, field

import pytest
from megatron_operator.controller import workqueue
from megatron_operator.controller.workqueue import NORMAL, ROUTINE, URGENT, WorkQueue
from megatron_operator.lifecycle.status_builder import RecipeKey

from tests.unit.controller.test_workqueue import A, B, C, drain


@dataclass
class Recorder:
    """Reconciles by recording. Before its workers start, keys can be queued."""

    reconciled: list[RecipeKey] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.queue = WorkQueue(self._reconcile, workers=1)

    async def _reconcile(self, key: RecipeKey) -> None:
        self.reconciled.append(key)

    async def queued(self, key: RecipeKey, patience: float) -> None:
        """Queue a key, and wait until it is."""
        self.queue.add(key, 0, patience)
        async with asyncio.timeout(5):
            while key in self.queue._timers:
                await asyncio.sleep(0)

    async def order(self, count: int) -> list[RecipeKey]:
        """The keys in the order in which they are served."""
        self.queue.start()
        await drain(self.reconciled, count)
        await self.queue.stop()
        return self.reconciled


async def test_urgent_keys_overtake_others() -> None:
    recorder = Recorder()
    await recorder.queued(A, ROUTINE)
    await recorder.queued(B, NORMAL)
    await recorder.queued(C, URGENT)
    assert await recorder.order(3) == [C, B, A]


async def test_keys_of_the_same_urgency_are_served_in_their_order() -> None:
    recorder = Recorder()
    for key in (B, A, C):
        await recorder.queued(key, NORMAL)
    assert await recorder.order(3) == [B, A, C]


async def test_a_key_that_waits_becomes_urgent_and_is_served_once() -> None:
    recorder = Recorder()
    await recorder.queued(A, NORMAL)
    await recorder.queued(B, NORMAL)
    await recorder.queued(B, URGENT)
    await recorder.queued(B, ROUTINE)
    await recorder.queued(C, ROUTINE)
    assert await recorder.order(3) == [B, A, C]


async def test_an_urgent_event_is_not_made_patient_by_a_later_one() -> None:
    recorder = Recorder()
    await recorder.queued(A, NORMAL)
    recorder.queue.add(B, 0, URGENT)
    await recorder.queued(B, ROUTINE)
    assert await recorder.order(2) == [B, A]


async def test_what_has_waited_for_longer_than_its_patience_is_before_what_is_urgent() -> None:
    recorder = Recorder()
    await recorder.queued(A, 0.001)
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(5):
        while asyncio.get_running_loop().time() < began + 0.002:
            await asyncio.sleep(0)
    await recorder.queued(B, URGENT)
    assert await recorder.order(2) == [A, B]


async def test_what_is_overdue_leaves_half_of_the_places_to_what_is_urgent() -> None:
    patient = [RecipeKey("default", f"patient-{number}") for number in range(6)]
    urgent = [RecipeKey("default", f"urgent-{number}") for number in range(2)]
    begun: list[RecipeKey] = []
    ends = asyncio.Event()

    async def reconcile(key: RecipeKey) -> None:
        begun.append(key)
        await ends.wait()

    queue = WorkQueue(reconcile, workers=4)
    for key in patient:
        queue.add(key, 0, 0.001)
    async with asyncio.timeout(5):
        while queue._timers:
            await asyncio.sleep(0)
        for key in urgent:
            queue.add(key, 0.002, URGENT)
        while queue._timers:
            await asyncio.sleep(0)
    queue.start()
    await drain(begun, 4)
    assert begun == [*patient[:2], *urgent]
    ends.set()
    await drain(begun, 8)
    await queue.stop()
    assert begun[4:] == patient[2:]


async def test_a_retry_is_urgent_where_an_edit_came_while_the_key_was_overdue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def reconcile(_key: RecipeKey) -> None:
        raise RuntimeError("unexpected")

    monkeypatch.setattr(workqueue, "FIRST_RETRY", 3600.0)
    monkeypatch.setattr(workqueue, "LAST_RETRY", 3600.0)
    queue = WorkQueue(reconcile, workers=1)
    queue.add(A, 0, 0.001)
    async with asyncio.timeout(5):
        while queue._timers:
            await asyncio.sleep(0)
        queue.add(A, 0.002, URGENT)
        while queue._timers:
            await asyncio.sleep(0)
        queue.start()
        while A not in queue._timers:
            await asyncio.sleep(0)
    assert queue._timers[A].patience == URGENT
    await queue.stop()


async def test_what_became_urgent_while_it_was_reconciled_overtakes_others_afterwards() -> None:
    reconciled: list[RecipeKey] = []
    began, go = asyncio.Event(), asyncio.Event()

    async def reconcile(key: RecipeKey) -> None:
        reconciled.append(key)
        began.set()
        await go.wait()
        while key == B and A not in queue._waiting:
            await asyncio.sleep(0.001)

    queue = WorkQueue(reconcile, workers=1)
    queue.start()
    queue.add(A, 0)
    await began.wait()
    queue.add(B, 0)
    queue.add(C, 0)
    queue.add(A, 0, URGENT)
    queue.add(A, 0, ROUTINE)
    async with asyncio.timeout(5):
        while A not in queue._again or queue._waiting.keys() != {B, C}:
            await asyncio.sleep(0.001)
    go.set()
    await drain(reconciled, 4)
    await queue.stop()
    assert reconciled == [A, B, A, C]
