"""When the poller notifies, and what it keeps of the answers."""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from megatron_contract.progress import ProgressReport
from megatron_operator.controller import progress_poller
from megatron_operator.controller.progress_poller import ProgressPoller
from megatron_operator.controller.settings import Settings
from megatron_operator.controller.workqueue import NORMAL, ROUTINE, URGENT
from megatron_operator.lifecycle.progress_reading import ProgressReading, ProgressTarget
from megatron_operator.lifecycle.status_builder import RecipeKey
from megatron_operator.lifecycle.status_update import SHORTEST_EVALUATION

from tests.unit.controller.hostile_pod import ok, once

REPORT: dict[str, Any] = {"schema": 1, "phase": "training", "iteration": 7, "generation": 1}
TARGET = ProgressTarget("run-master-0", "10.0.0.1", 0)


async def poll_once(poller: ProgressPoller, key: RecipeKey) -> None:
    """One round of a run."""
    async with asyncio.TaskGroup() as requests:
        await poller._poll(key, poller._runs[key], requests)


class OnePodPoller(ProgressPoller):
    """Polls one pod, whose answer the test sets."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.report: dict[str, Any] | None = REPORT
        self.notified: list[float] = []
        """The patience of each notification."""
        super().__init__(Settings(), lambda _key, patience: self.notified.append(patience), now)
        self.key = RecipeKey("default", "run")
        self.watch(self.key, (TARGET,))

    async def _fetch(self, *_: Any) -> ProgressReport:
        if self.report is None:
            raise ConnectionRefusedError
        return ProgressReport.parse(self.report)

    def poll(self) -> ProgressReading:
        asyncio.run(poll_once(self, self.key))
        reading = self.reading(self.key)
        assert reading is not None
        return reading


def test_setting_the_clock_does_not_change_the_age_of_an_answer(monkeypatch: Any) -> None:
    moment, clock = [100.0], [1_800_000_000.0]
    poller = OnePodPoller(lambda: clock[0])
    monkeypatch.setattr(time, "monotonic", lambda: moment[0])
    poller.poll()
    moment[0] += 2
    clock[0] += 3600
    later = poller.reading(poller.key)
    assert later is not None
    assert later.answered == clock[0] - 2
    assert poller.poll().unmoved == 2


def test_time_without_an_answer_does_not_count_as_time_without_progress(monkeypatch: Any) -> None:
    poller, moment = OnePodPoller(), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: moment[0])
    poller.poll()
    poller.report, moment[0] = None, 700.0
    assert poller.poll().unmoved == 0


@pytest.mark.parametrize(
    ("phase", "later", "unmoved"),
    [
        ("loading", "2026-11-29T10:01:00.000Z", 0),
        ("loading", "2026-11-29T09:59:00.000Z", 60),
        ("evaluating", "2026-11-29T10:01:00.000Z", 0),
        ("saving", "2026-11-29T10:01:00.000Z", 60),
    ],
)
def test_a_later_report_of_ranks_that_load_or_evaluate_is_progress(
    phase: str, later: str, unmoved: float, monkeypatch: Any
) -> None:
    poller, moment = OnePodPoller(), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: moment[0])
    poller.report = REPORT | {"phase": phase, "updatedAt": "2026-11-29T10:00:00.000Z"}
    poller.poll()
    poller.report, moment[0] = poller.report | {"updatedAt": later}, 160.0
    assert poller.poll().unmoved == unmoved


def test_an_evaluation_that_lasts_is_reconciled_for_although_its_batches_are_progress(
    monkeypatch: Any,
) -> None:
    poller, moment = OnePodPoller(), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: moment[0])
    poller.poll()
    began = moment[0] = 130.0
    poller.notified.clear()
    for second in range(0, int(progress_poller.REMIND) + 1, 5):
        moment[0] = began + second
        poller.report = REPORT | {"phase": "evaluating", "updatedAt": f"2026-11-29T10:00:{second:02}.000Z"}
        reading = poller.poll()
        assert (reading.unchanged, reading.unmoved) == (second, 0)
    assert poller.notified == [NORMAL, ROUTINE]
    assert reading.unchanged >= SHORTEST_EVALUATION


def test_progress_incidents_and_warnings_notify_and_other_changes_do_not() -> None:
    poller = OnePodPoller()
    poller.report = REPORT | {"lmLoss": 2.0}
    poller.poll()
    poller.report = REPORT | {"lmLoss": 1.9, "usefulSeconds": 12.0}
    poller.poll()
    assert len(poller.notified) == 1
    poller.report |= {"incidents": [{"generation": 2, "detectedAt": 1.0}]}
    poller.poll()
    assert len(poller.notified) == 2


async def fetch(body: bytes) -> ProgressReport | None:
    """What a poller makes of the answer of a real server."""
    async with once(ok(body)).running() as pod:
        poller = ProgressPoller(Settings(progress_url=pod.url), lambda _key, _patience: None, time.time)
        key = RecipeKey("default", "run")
        poller.watch(key, (TARGET,))
        await poll_once(poller, key)
        reading = poller.reading(key)
    return None if reading is None else reading.report


async def test_a_valid_report_is_parsed() -> None:
    assert await fetch(json.dumps(REPORT).encode()) == ProgressReport.parse(REPORT)


@pytest.mark.parametrize(
    "body",
    [
        [],
        {"phase": "training"},
        REPORT | {"schema": 2},
        REPORT | {"iteration": "7"},
        REPORT | {"incidents": [{}]},
        REPORT | {"incidents": [{"generation": 2}]},
        REPORT | {"incidents": [{"generation": 2, "detectedAt": None}]},
        REPORT | {"incidents": [{"generation": None, "detectedAt": 1.0}]},
    ],
)
async def test_a_report_that_violates_the_contract_is_logged_and_ignored(
    body: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert await fetch(json.dumps(body).encode()) is None
    assert "default/run: run-master-0: " in caplog.text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b'{"schema": 1, "phase": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"schema": 1, "phase": "training", "iteration": ' + b"9" * 5000 + b"}",
        b'{"schema": 1, "phase": "\xff"}',
    ],
    ids=["empty", "torn", "nested without end", "nested", "a number of 5000 digits", "not UTF-8"],
)
async def test_an_answer_that_json_cannot_hold_is_logged_and_ignored(
    body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert await fetch(body) is None
    assert "default/run: run-master-0: " in caplog.text
    assert len(caplog.text) < 500


async def test_a_pod_that_is_refused_again_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with once(ok(b"[]")).running() as pod:
        poller = ProgressPoller(Settings(progress_url=pod.url), lambda _key, _patience: None, time.time)
        key = RecipeKey("default", "run")
        poller.watch(key, (TARGET,))
        with caplog.at_level(logging.WARNING):
            await poll_once(poller, key)
            await poll_once(poller, key)
    assert caplog.text.count("run-master-0") == 1


async def test_pods_that_do_not_answer_are_silent_until_one_does(monkeypatch: Any) -> None:
    moment = [100.0]
    poller = OnePodPoller()
    monkeypatch.setattr(time, "monotonic", lambda: moment[0])
    assert poller.silence(poller.key) is None
    poller.report = None
    for _ in range(3):
        await poll_once(poller, poller.key)
        moment[0] += 60
    silence = poller.silence(poller.key)
    assert silence is not None
    assert silence.seconds == 180
    poller.report = REPORT
    await poll_once(poller, poller.key)
    assert poller.silence(poller.key) is None


async def test_the_event_loop_has_a_turn_between_two_answers(monkeypatch: Any) -> None:
    turns, seen = [0], []

    async def count() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    async def answer(_url: str, _limit: float) -> bytes:
        return b"[]"

    def parse(_body: bytes) -> object:
        seen.append(turns[0])
        return REPORT

    monkeypatch.setattr(progress_poller, "fetch", answer)
    monkeypatch.setattr(progress_poller, "load_json", parse)
    poller = ProgressPoller(Settings(), lambda _key, _patience: None, time.time)
    key = RecipeKey("default", "run")
    poller.watch(key, tuple(ProgressTarget(f"run-worker-{rank}", "10.0.0.1", rank) for rank in range(8)))
    counter = asyncio.create_task(count())
    await poll_once(poller, key)
    counter.cancel()
    assert len(set(seen)) == 8


async def test_the_silence_of_a_pod_has_its_cause() -> None:
    refused = once(b"")
    async with refused.running():
        pass
    for pod, cause in ((refused, "onnect"), (once(ok(b"[]")), "ProgressReport: expected an object")):
        poller = ProgressPoller(Settings(), lambda _key, _patience: None, time.time)
        key = RecipeKey("default", "run")
        poller.watch(key, (TARGET,))
        if pod is refused:
            poller._settings = Settings(progress_url=pod.url)
            await poll_once(poller, key)
        else:
            async with pod.running():
                poller._settings = Settings(progress_url=pod.url)
                await poll_once(poller, key)
        silence = poller.silence(key)
        assert silence is not None
        assert silence.problem.startswith("run-master-0: ")
        assert cause in silence.problem


@pytest.mark.parametrize(
    ("change", "patience"),
    [
        ({"generation": 2}, URGENT),
        ({"incidents": [{"generation": 2, "detectedAt": 1.0}]}, URGENT),
        ({"iteration": 8}, NORMAL),
        ({"phase": "evaluating"}, NORMAL),
    ],
)
def test_a_failure_is_more_urgent_than_progress(change: dict[str, Any], patience: float) -> None:
    poller = OnePodPoller()
    poller.poll()
    poller.report = REPORT | change
    poller.poll()
    assert poller.notified == [NORMAL, patience]


def test_a_reading_has_the_last_iteration_of_the_generation_before() -> None:
    poller = OnePodPoller()
    assert poller.poll().reached is None
    poller.report = REPORT | {"iteration": 60}
    assert poller.poll().reached is None
    for iteration in (50, 51):
        poller.report = REPORT | {"generation": 2, "iteration": iteration}
        assert poller.poll().reached == 60


def test_a_run_without_an_iteration_for_a_minute_is_urgent_however_many_others_wait(monkeypatch: Any) -> None:
    poller, moment = OnePodPoller(), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: moment[0])
    poller.poll()
    poller.notified.clear()
    for _ in range(int(2 * progress_poller.STILL)):
        moment[0] += 1
        poller.poll()
    assert poller.notified == [ROUTINE, URGENT, URGENT, URGENT]


def test_iterations_of_a_resting_run_notify_only_after_a_while_and_changes_of_its_state_at_once(
    monkeypatch: Any,
) -> None:
    poller, moment = OnePodPoller(), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: moment[0])
    poller.poll()
    poller.rest(poller.key, True)
    for iteration in range(8, 8 + int(progress_poller.REMIND)):
        moment[0] += 1
        poller.report = REPORT | {"iteration": iteration}
        poller.poll()
        due = moment[0] >= 100 + progress_poller.REMIND
        assert poller.notified == ([NORMAL, ROUTINE] if due else [NORMAL])
    poller.report = REPORT | {"iteration": 90, "phase": "evaluating"}
    poller.poll()
    assert len(poller.notified) == 3
    poller.rest(poller.key, False)
    poller.report = poller.report | {"iteration": 91}
    poller.poll()
    assert len(poller.notified) == 4
