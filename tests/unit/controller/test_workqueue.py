"""Keys are deduplicated, never processed twice at the same time, and retried after a failure."""

import asyncio

import pytest
from megatron_operator.controller import workqueue
from megatron_operator.controller.reconciler import ReconcileError
from megatron_operator.controller.workqueue import NORMAL, ROUTINE, URGENT, WorkQueue
from megatron_operator.lifecycle.status_builder import RecipeKey
from prometheus_client import REGISTRY

A, B, C = (RecipeKey("default", name) for name in "abc")


async def drain(reconciled: list[RecipeKey], count: int) -> None:
    async with asyncio.timeout(5):
        while len(reconciled) < count:
            await asyncio.sleep(0)


async def test_many_events_of_one_recipe_cause_one_reconcile() -> None:
    reconciled: list[RecipeKey] = []

    async def reconcile(key: RecipeKey) -> None:
        reconciled.append(key)

    queue = WorkQueue(reconcile, workers=2)
    queue.start()
    for _ in range(100):
        queue.add(A, 0.01)
    queue.add(B, 0.02)
    await drain(reconciled, 2)
    await queue.stop()
    assert reconciled == [A, B]


async def test_the_earliest_scheduled_time_wins() -> None:
    reconciled: list[RecipeKey] = []

    async def reconcile(key: RecipeKey) -> None:
        reconciled.append(key)

    queue = WorkQueue(reconcile, workers=1)
    queue.start()
    queue.add(A, 3600)
    queue.add(A, 0)
    await drain(reconciled, 1)
    queue.add(B, 0)
    queue.add(B, 3600)
    await drain(reconciled, 2)
    await queue.stop()
    assert reconciled == [A, B]


async def test_a_recipe_is_never_reconciled_twice_at_once_and_no_event_is_lost() -> None:
    reconciled: list[RecipeKey] = []
    inside = 0
    go = asyncio.Event()

    async def reconcile(key: RecipeKey) -> None:
        nonlocal inside
        inside += 1
        assert inside == 1
        reconciled.append(key)
        await go.wait()
        inside -= 1

    queue = WorkQueue(reconcile, workers=4)
    queue.start()
    queue.add(A, 0)
    await drain(reconciled, 1)
    queue.add(A, 0)
    queue.add(A, 0)
    for _ in range(20):  # turns of the loop in which a second reconcile could start
        await asyncio.sleep(0)
    assert len(reconciled) == 1
    go.set()
    await drain(reconciled, 2)
    await queue.stop()


async def test_a_failure_is_retried_and_does_not_delay_other_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workqueue, "FIRST_RETRY", 0.001)
    reconciled: list[RecipeKey] = []

    async def reconcile(key: RecipeKey) -> None:
        reconciled.append(key)
        if key == A and reconciled.count(A) < 3:
            raise RuntimeError("a fault of one recipe")

    queue = WorkQueue(reconcile, workers=1)
    queue.start()
    queue.add(A, 0)
    queue.add(B, 0)
    await drain(reconciled, 4)
    await queue.stop()
    assert reconciled.count(A) == 3
    assert reconciled.count(B) == 1


async def test_a_reconcile_may_request_another() -> None:
    reconciled: list[RecipeKey] = []

    async def reconcile(key: RecipeKey) -> float | None:
        reconciled.append(key)
        return 0.001 if len(reconciled) < 3 else None

    queue = WorkQueue(reconcile, workers=1)
    queue.start()
    queue.add(A, 0)
    await drain(reconciled, 3)
    await queue.stop()
    assert reconciled == [A, A, A]


async def test_a_key_that_fails_for_days_is_still_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    reconciled: list[RecipeKey] = []

    async def reconcile(key: RecipeKey) -> None:
        reconciled.append(key)
        if len(reconciled) <= 2000:
            raise RuntimeError("unexpected")

    monkeypatch.setattr(workqueue, "LAST_RETRY", 0.0)
    monkeypatch.setattr(workqueue.log, "warning", lambda *_, **__: None)
    queue = WorkQueue(reconcile, workers=1)
    queue.start()
    queue.add(A, 0)
    await drain(reconciled, 2001)
    assert queue.alive()
    await queue.stop()


async def test_an_error_that_names_a_time_is_retried_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []

    async def reconcile(_key: RecipeKey) -> None:
        raise ReconcileError(0.25)

    queue = WorkQueue(reconcile, workers=1)
    add = queue.add

    def record(key: RecipeKey, delay: float = 0.0, patience: float = NORMAL) -> None:
        delays.append(delay)
        assert patience == URGENT, "a retry is as urgent as what failed"
        add(key, 0.0, patience)

    monkeypatch.setattr(queue, "add", record)
    queue.start()
    add(A, 0, URGENT)
    async with asyncio.timeout(5):
        while len(delays) < 5:
            await asyncio.sleep(0)
    await queue.stop()
    assert set(delays) == {0.25}


async def test_the_log_has_the_class_of_an_error_without_a_message(caplog: pytest.LogCaptureFixture) -> None:
    failed = asyncio.Event()

    async def reconcile(_key: RecipeKey) -> None:
        failed.set()
        raise TimeoutError

    queue = WorkQueue(reconcile, workers=1)
    queue.start()
    queue.add(A, 0)
    await failed.wait()
    await queue.stop()
    assert "default/a: TimeoutError; retry in" in caplog.text


async def test_a_stopped_queue_finishes_what_runs_and_starts_nothing_else() -> None:
    began, go = asyncio.Event(), asyncio.Event()
    done: list[RecipeKey] = []

    async def reconcile(key: RecipeKey) -> float:
        began.set()
        await go.wait()
        done.append(key)
        return 0.0

    queue = WorkQueue(reconcile, workers=1)
    queue.start()
    queue.add(A, 0)
    await began.wait()
    queue.add(B, 0)
    await asyncio.sleep(0)
    stopping = asyncio.create_task(queue.stop(grace=60))
    await asyncio.sleep(0)
    go.set()
    await stopping
    assert done == [A]


async def test_a_reconcile_that_outlasts_the_grace_is_cancelled() -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def reconcile(_key: RecipeKey) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    queue = WorkQueue(reconcile, workers=1)
    queue.start()
    queue.add(A, 0)
    await began.wait()
    await queue.stop(grace=0.01)
    assert cancelled.is_set()


async def test_the_metric_counts_the_recipes_that_wait_for_a_worker() -> None:
    lengths: list[float | None] = []

    def length() -> float | None:
        return REGISTRY.get_sample_value("megatron_operator_queue_length")

    async def reconcile(_key: RecipeKey) -> None:
        lengths.append(length())

    queue = WorkQueue(reconcile, workers=1)
    queue.add(A, 0)
    queue.add(B, 0)
    async with asyncio.timeout(60):
        while length() != 2:
            await asyncio.sleep(0)
        queue.start()
        while len(lengths) < 2:
            await asyncio.sleep(0)
    await queue.stop()
    assert lengths == [1, 0]


async def test_a_reconcile_that_is_cancelled_from_within_is_no_sound_end() -> None:
    async def reconcile(_key: RecipeKey) -> None:
        raise asyncio.CancelledError

    queue = WorkQueue(reconcile, workers=1)
    queue.start()
    assert queue.alive()
    queue.add(A, 0)
    async with asyncio.timeout(5):
        while queue.alive():
            await asyncio.sleep(0)
    await queue.stop()


@pytest.mark.parametrize(("delay", "patience"), [(1.0, 4.0), (15.0, 60.0), (600.0, ROUTINE)])
async def test_a_requested_reconcile_is_patient_for_four_times_its_delay(
    delay: float, patience: float
) -> None:
    async def reconcile(_key: RecipeKey) -> float:
        return delay

    queue = WorkQueue(reconcile, workers=1)
    queue.start()
    queue.add(A, 0, URGENT)
    async with asyncio.timeout(5):
        while not (A in queue._timers and queue._timers[A].patience == patience):
            await asyncio.sleep(0)
    await queue.stop()
