"""Each recipe once, never twice at the same time, failures again."""

import asyncio

import pytest
from megatron_operator.controller import workqueue
from megatron_operator.controller.workqueue import Key, WorkQueue

A, B = Key("default", "a"), Key("default", "b")


async def drain(looked: list[Key], count: int) -> None:
    async with asyncio.timeout(5):
        while len(looked) < count:
            await asyncio.sleep(0)


async def test_many_events_about_one_recipe_are_one_look() -> None:
    looked: list[Key] = []

    async def reconcile(key: Key) -> None:
        looked.append(key)

    queue = WorkQueue(reconcile, workers=2)
    queue.start()
    for _ in range(100):
        queue.add(A, 0.01)
    queue.add(B, 0.02)
    await drain(looked, 2)
    await queue.stop()
    assert looked == [A, B]


async def test_an_earlier_appointment_stands_and_a_nearer_one_replaces_it() -> None:
    looked: list[Key] = []

    async def reconcile(key: Key) -> None:
        looked.append(key)

    queue = WorkQueue(reconcile, workers=1)
    queue.start()
    queue.add(A, 3600)
    queue.add(A, 0)
    await drain(looked, 1)
    queue.add(B, 0)
    queue.add(B, 3600)
    await drain(looked, 2)
    await queue.stop()
    assert looked == [A, B]


async def test_a_recipe_is_never_looked_at_by_two_workers_and_no_event_is_lost() -> None:
    looked: list[Key] = []
    inside = 0
    go = asyncio.Event()

    async def reconcile(key: Key) -> None:
        nonlocal inside
        inside += 1
        assert inside == 1
        looked.append(key)
        await go.wait()
        inside -= 1

    queue = WorkQueue(reconcile, workers=4)
    queue.start()
    queue.add(A, 0)
    await drain(looked, 1)
    queue.add(A, 0)
    queue.add(A, 0)
    for _ in range(20):  # turns of the loop in which a second look could begin
        await asyncio.sleep(0)
    assert len(looked) == 1
    go.set()
    await drain(looked, 2)
    await queue.stop()


async def test_a_failure_is_tried_again_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workqueue, "FIRST_RETRY", 0.001)
    looked: list[Key] = []

    async def reconcile(key: Key) -> None:
        looked.append(key)
        if key == A and looked.count(A) < 3:
            raise RuntimeError("a fault of this recipe alone")

    queue = WorkQueue(reconcile, workers=1)
    queue.start()
    queue.add(A, 0)
    queue.add(B, 0)
    await drain(looked, 4)
    await queue.stop()
    assert looked.count(A) == 3
    assert looked.count(B) == 1


async def test_a_look_may_ask_for_another() -> None:
    looked: list[Key] = []

    async def reconcile(key: Key) -> float | None:
        looked.append(key)
        return 0.001 if len(looked) < 3 else None

    queue = WorkQueue(reconcile, workers=1)
    queue.start()
    queue.add(A, 0)
    await drain(looked, 3)
    await queue.stop()
    assert looked == [A, A, A]
