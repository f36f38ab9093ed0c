"""Runs are polled independently: pods that do not answer delay nobody else, and their own run once."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from megatron_contract.progress import ProgressReport
from megatron_operator.controller import polled_pod, progress_poller
from megatron_operator.controller.pod_http import AnswerError
from megatron_operator.controller.polled_pod import Slots, Standing
from megatron_operator.controller.progress_poller import ProgressPoller
from megatron_operator.controller.settings import Settings
from megatron_operator.lifecycle import hang_detection
from megatron_operator.lifecycle.progress_reading import ProgressTarget
from megatron_operator.lifecycle.status_builder import RecipeKey

from bench.polling import Pods, targets

DEADLOCK = 60.0
"""Seconds after which a test that makes no progress fails; none comes near."""
RUN = RecipeKey("default", "run")
REPORT = {"schema": 1, "phase": "training", "iteration": 7, "generation": 1}


async def until(reached: Callable[[], bool]) -> None:
    """Let the event loop run until a condition holds."""
    async with asyncio.timeout(DEADLOCK):
        while not reached():
            await asyncio.sleep(0.001)


@asynccontextmanager
async def polling(poller: ProgressPoller) -> AsyncIterator[None]:
    """Poll all runs meanwhile."""
    task = asyncio.create_task(poller.run())
    try:
        yield
        assert not task.done(), "the poller goes on whatever its pods do"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def without_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests without an answer stay open as long as the test runs; there is no pause between rounds."""
    monkeypatch.setattr(progress_poller, "RUNS_PER_SECOND", 1e9)
    monkeypatch.setattr(progress_poller, "TIMEOUT", 10 * DEADLOCK)
    monkeypatch.setattr(polled_pod, "HOLD", 0.001)


def poller_of(pods: Pods) -> ProgressPoller:
    """A poller that polls without a pause between two rounds."""
    settings = Settings(progress_url=pods.url, progress_interval=0.0)
    return ProgressPoller(settings, lambda _key, _patience: None, time.time)


class Scripted(ProgressPoller):
    """A poller whose pods do what the test sets by name: an exception, a report or an Event to wait for."""

    def __init__(self, *pods: str, **settings: Any) -> None:
        self.behaviour: dict[str, Any] = {}
        self.polls: Counter[str] = Counter()
        self.notified: list[RecipeKey] = []
        super().__init__(Settings(**settings), lambda key, _patience: self.notified.append(key), time.time)
        self.targets = tuple(ProgressTarget(pod, "10.0.0.1", rank) for rank, pod in enumerate(pods))
        self.watch(RUN, self.targets)

    async def _fetch(self, _key: RecipeKey, target: ProgressTarget) -> ProgressReport:
        self.polls[target.pod] += 1
        behaviour = self.behaviour.get(target.pod, REPORT)
        if isinstance(behaviour, asyncio.Event):
            await behaviour.wait()
            behaviour = REPORT
        if isinstance(behaviour, Exception):
            raise behaviour
        return ProgressReport.parse(behaviour)

    async def rounds(self, number: int = 1) -> None:
        """So many rounds; requests that nobody waits for are cancelled."""
        requests = asyncio.TaskGroup()
        async with requests:
            for _ in range(number):
                await self._poll(RUN, self._runs[RUN], requests)
            for pod in self._runs[RUN].pods.values():
                if pod.request is not None:
                    pod.request.cancel()

    @property
    def pods(self) -> dict[str, polled_pod.PolledPod]:
        return {target.pod: pod for target, pod in self._runs[RUN].pods.items()}


@pytest.fixture
def moment(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The monotonic clock, which only the test moves."""
    moment = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: moment[0])
    yield moment
    monkeypatch.undo()


@pytest.mark.usefixtures("without_timeouts")
async def test_pods_that_never_answer_do_not_delay_other_runs() -> None:
    async with Pods().running() as pods:
        poller = poller_of(pods)
        for number in range(20):
            poller.watch(RecipeKey(f"silent-{number}", "run"), targets(8, 0))
        poller.watch(RUN, targets(0, 2))
        async with polling(poller):
            await until(lambda: pods.polls["default", "pod-0"] >= 100)
            await until(lambda: pods.open == 20 * 8)
        assert all(count == 1 for (_, pod), count in pods.polls.items() if pod.startswith("silent"))


@pytest.mark.usefixtures("without_timeouts")
async def test_a_pod_that_stops_answering_keeps_no_slot_of_the_pods_that_answer() -> None:
    poller = Scripted(*(f"pod-{number}" for number in range(8)), progress_interval=0.0)
    other = RecipeKey("default", "other")
    for number in range(10):
        poller.watch(RecipeKey(f"tenant-{number}", "run"), poller.targets)
    poller.watch(other, (ProgressTarget("healthy", "10.0.0.1", 0),))
    async with polling(poller):
        await until(lambda: min(poller.polls[pod.pod] for pod in poller.targets) >= 20)
        poller.behaviour |= {pod.pod: asyncio.Event() for pod in poller.targets}
        before = poller.polls["healthy"]
        await until(lambda: poller.polls["healthy"] >= before + 100)
    assert poller.reading(other) is not None


async def test_pods_that_answered_do_not_wait_for_slots_of_those_that_did_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(polled_pod, "HOLD", 10 * DEADLOCK)
    poller = Scripted("pod-0", progress_interval=0.0)
    silent = [ProgressTarget(f"silent-{number}", "10.0.0.1", number) for number in range(8)]
    poller.behaviour = {pod.pod: TimeoutError() for pod in silent}
    for number in range(20):
        poller.watch(RecipeKey(f"tenant-{number}", "run"), tuple(silent))
    async with polling(poller):
        await until(lambda: min(poller.polls[pod.pod] for pod in silent) >= 20)
        poller.behaviour |= {pod.pod: asyncio.Event() for pod in silent}
        before = poller.polls["pod-0"]
        await until(lambda: poller.polls["pod-0"] >= before + 100)


async def test_a_slot_is_free_again_although_its_request_has_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(polled_pod, "HOLD", 0.001)
    slots, inside = Slots(1), 0
    async with asyncio.timeout(DEADLOCK):
        async with slots.held():
            inside += 1
            async with slots.held():
                inside += 1
    assert inside == 2


async def test_no_more_requests_than_slots_are_under_way() -> None:
    slots, held, most = Slots(3), 0, 0

    async def request() -> None:
        nonlocal held, most
        async with slots.held():
            held += 1
            most = max(most, held)
            await asyncio.sleep(0)
            held -= 1

    await asyncio.gather(*(request() for _ in range(20)))
    assert most == 3


async def test_a_late_answer_moves_a_pod_to_the_slots_of_slow_ones(moment: list[float]) -> None:
    poller = Scripted("pod-0")
    await poller.rounds()
    assert poller.pods["pod-0"].standing is Standing.PROMPT

    async def late(_key: RecipeKey, _target: ProgressTarget) -> ProgressReport:
        moment[0] += 1.5
        return ProgressReport.parse(REPORT)

    poller._fetch = late  # type: ignore[method-assign]
    await poller.rounds()
    assert poller.pods["pod-0"].standing is Standing.SLOW


async def test_a_run_with_one_pod_that_answers_does_not_wait_for_its_silent_pods() -> None:
    silent = [f"silent-{number}" for number in range(7)]
    poller = Scripted(*silent, "pod-7")
    poller.behaviour = dict.fromkeys(silent, TimeoutError())
    await poller.rounds()
    poller.behaviour = dict.fromkeys(silent, asyncio.Event())
    for iteration in range(8, 18):
        poller.behaviour["pod-7"] = REPORT | {"iteration": iteration}
        async with asyncio.timeout(DEADLOCK):
            await poller.rounds()
        reading = poller.reading(RUN)
        assert reading is not None
        assert reading.report.iteration == iteration
        assert poller.silence(RUN) is None
    assert len(poller.notified) == 11


async def test_the_first_reading_is_that_of_all_pods() -> None:
    """A part of them would lack warnings that the others report, and an Event would be posted again."""
    poller = Scripted("pod-0", "pod-1")
    poller.behaviour["pod-1"] = answers = asyncio.Event()
    async with asyncio.timeout(DEADLOCK), asyncio.TaskGroup() as tasks:
        tasks.create_task(poller.rounds())
        await until(lambda: poller.polls["pod-1"] == 1)
        assert poller.reading(RUN) is None
        answers.set()
    assert poller.reading(RUN) is not None


async def test_a_pod_that_lets_requests_time_out_is_asked_less_often_and_the_others_are_not() -> None:
    poller, asked = Scripted("silent", "pod-1"), []
    poller.behaviour["silent"] = TimeoutError()
    for number in range(20):
        before = poller.polls["silent"]
        await poller.rounds()
        # A request in the background runs when the round is over.
        await until(lambda: not poller.pods["silent"].in_flight)
        if poller.polls["silent"] > before:
            asked.append(number)
    assert asked == [0, 2, 6, 13]
    assert poller.polls["pod-1"] == 20


@pytest.mark.parametrize("refusal", [ConnectionRefusedError(), AnswerError("HTTP status 503")])
async def test_a_pod_that_refuses_at_once_is_asked_in_every_round(refusal: Exception) -> None:
    poller = Scripted("pod-0")
    poller.behaviour["pod-0"] = refusal
    await poller.rounds(20)
    assert poller.polls["pod-0"] == 20


async def test_a_pod_that_answers_again_is_part_of_the_next_round() -> None:
    poller = Scripted("pod-0", "pod-1")
    poller.behaviour = {"pod-0": REPORT, "pod-1": TimeoutError()}
    await poller.rounds()
    poller.behaviour["pod-1"] = REPORT | {"lmLoss": 2.5}
    losses = []
    for _ in range(4):
        await poller.rounds()
        await until(lambda: not poller.pods["pod-1"].in_flight)
        reading = poller.reading(RUN)
        assert reading is not None
        losses.append(reading.report.lm_loss)
    assert losses[0] is None
    assert losses[-1] == 2.5


async def test_an_old_answer_of_a_silent_pod_is_not_part_of_a_reading() -> None:
    poller = Scripted("pod-0", "pod-1")
    poller.behaviour = {"pod-0": REPORT | {"phase": "training"}, "pod-1": REPORT | {"phase": "rendezvous"}}
    await poller.rounds()
    poller.behaviour["pod-0"] = TimeoutError()
    await poller.rounds()
    reading = poller.reading(RUN)
    assert reading is not None
    assert reading.report.phase == "rendezvous"


@pytest.mark.parametrize(("runs", "polls"), [(1000, 10), (2000, 20)], ids=["25-s", "50-s"])
async def test_long_rounds_do_not_make_rests_longer_than_hang_detection_allows(runs: int, polls: int) -> None:
    poller = Scripted("pod-0")
    poller._answering.update(RecipeKey("default", f"run-{number}") for number in range(runs))
    poller.behaviour["pod-0"] = TimeoutError()
    await poller.rounds(20)
    assert poller.polls["pod-0"] == polls, "every second round of 25 s, every round of 50 s"


async def test_however_many_runs_answer_each_is_asked_before_its_answer_is_stale() -> None:
    poller = Scripted("pod-0")
    poller._answering.update(RecipeKey("default", f"run-{number}") for number in range(10_000))
    assert poller._interval() + progress_poller.TIMEOUT < hang_detection.STALE


async def test_runs_that_do_not_answer_do_not_make_the_rounds_of_others_longer() -> None:
    poller = Scripted("pod-0")
    for number in range(1000):
        poller.watch(RecipeKey("default", f"silent-{number}"), poller.targets)
    await poller.rounds()
    assert poller._interval() == Settings().progress_interval


async def test_a_run_is_silent_since_the_last_of_its_pods_is(moment: list[float]) -> None:
    poller = Scripted("pod-0", "pod-1")
    poller.behaviour = {"pod-0": ConnectionRefusedError()}
    await poller.rounds()
    moment[0] += 100
    assert poller.silence(RUN) is None
    poller.behaviour["pod-1"] = ConnectionRefusedError()
    await poller.rounds()
    moment[0] += 30
    silence = poller.silence(RUN)
    assert silence is not None
    assert silence.seconds == 30


async def test_a_silent_run_stays_silent_when_its_pods_are_replaced_until_one_answers(
    moment: list[float],
) -> None:
    poller = Scripted("pod-0")
    poller.behaviour["pod-0"] = ConnectionRefusedError()
    await poller.rounds()
    moment[0] += 60
    poller.watch(RUN, (ProgressTarget("pod-0", "10.0.0.2", 0),))
    silence = poller.silence(RUN)
    assert silence is not None
    assert silence.seconds == 60
    poller.behaviour.clear()
    await poller.rounds()
    assert poller.silence(RUN) is None


async def test_a_run_without_pods_is_not_silent() -> None:
    poller = Scripted("pod-0")
    poller.behaviour["pod-0"] = ConnectionRefusedError()
    await poller.rounds()
    poller.watch(RUN, ())
    assert poller.silence(RUN) is None


@pytest.mark.usefixtures("without_timeouts")
async def test_a_run_that_is_forgotten_is_not_polled_and_its_requests_end() -> None:
    async with Pods().running() as pods:
        poller = poller_of(pods)
        poller.watch(RUN, targets(3, 0))
        async with polling(poller):
            await until(lambda: pods.open == 3)
            poller.forget(RUN)
            await until(lambda: pods.open == 0)
            poller.watch(RecipeKey("default", "marker"), targets(0, 1))
            await until(lambda: pods.polls["default", "pod-0"] >= 20)
        assert sum(pods.polls["default", f"silent-{number}"] for number in range(3)) == 3
        assert poller.reading(RUN) is None


@pytest.mark.usefixtures("without_timeouts")
async def test_a_run_that_is_watched_again_is_polled_again() -> None:
    async with Pods().running() as pods:
        poller = poller_of(pods)
        async with polling(poller):
            for number in range(3):
                poller.watch(RUN, targets(0, 1))
                poller.forget(RUN)
                poller.watch(RUN, targets(0, 1))
                await until(lambda wanted=number: pods.polls["default", "pod-0"] > wanted * 10)  # type: ignore[misc]
            assert len([run for run in poller._runs.values() if run.task is not None]) == 1


@pytest.mark.usefixtures("without_timeouts")
async def test_all_requests_end_with_the_poller() -> None:
    async with Pods().running() as pods:
        poller = poller_of(pods)
        poller.watch(RUN, targets(4, 1))
        async with polling(poller):
            await until(lambda: pods.open == 4)
        await until(lambda: pods.open == 0)


async def test_an_error_in_one_run_does_not_end_the_polling_of_any(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    poller, merge = Scripted("pod-0", progress_interval=0.0), progress_poller.merge_reports
    other = RecipeKey("default", "other")
    poller.watch(other, (ProgressTarget("broken", "10.0.0.1", 0),))
    poller.behaviour["broken"] = REPORT | {"iteration": 13}

    def failing(reports: dict[int, ProgressReport]) -> ProgressReport:
        if reports[0].iteration == 13:
            raise ValueError("unlucky")
        return merge(reports)

    monkeypatch.setattr(progress_poller, "merge_reports", failing)
    async with polling(poller):
        await until(lambda: poller.polls["pod-0"] >= 10 and poller.polls["broken"] >= 10)
    assert poller.reading(RUN) is not None
    assert "default/other: its progress cannot be polled" in caplog.text


async def test_an_unexpected_error_of_one_request_is_logged_and_counts_as_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    poller = Scripted("pod-0", "pod-1")
    poller.behaviour["pod-0"] = RecursionError()
    await poller.rounds(2)
    assert poller.reading(RUN) is not None
    assert "the progress of pod-0 cannot be read" in caplog.text
    assert poller.silence(RUN) is None
