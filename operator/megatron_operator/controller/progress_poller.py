"""Polls the progress of runs: each on a schedule of its own, with a bounded number of requests in flight."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from megatron_contract.environment import PROGRESS_PORT
from megatron_contract.progress import ProgressReport
from megatron_contract.wire import WireError, load_json

from megatron_operator.controller.pod_http import AnswerError, fetch
from megatron_operator.controller.polled_pod import PolledPod, Slots, Standing
from megatron_operator.controller.settings import Settings
from megatron_operator.controller.workqueue import NORMAL, ROUTINE, URGENT
from megatron_operator.lifecycle.progress_reading import (
    ProgressReading,
    ProgressTarget,
    Silence,
    merge_reports,
)
from megatron_operator.lifecycle.status_builder import RecipeKey

log = logging.getLogger(__name__)

TIMEOUT: Final = 2.0
"""Seconds for one answer, from the connection to its last byte."""
CONCURRENCY: Final = {Standing.PROMPT: 32, Standing.SLOW: 16, Standing.NEW: 32, Standing.SILENT: 16}
"""Slots for requests, over all runs: pods that answer late or not at all take none from those that answer."""
ALL_PODS_UP_TO: Final = 8
"""In larger gangs only the first and the last pod are polled: rank 0, and the stage that knows the loss."""
RUNS_PER_SECOND: Final = 40
"""With more runs that answer than that in an interval, the interval grows, up to LONGEST_INTERVAL."""
LONGEST_INTERVAL: Final = 50.0
"""Seconds: an answer that is older than a minute is none for hang detection."""
LONGEST_REST: Final = 6
"""Most rounds in a row in which a pod that lets requests time out is not asked."""
LONGEST_REST_SECONDS: Final = 30.0
"""Seconds that these rounds take at most: hang detection needs an answer a minute."""
REMIND: Final = 30.0
"""Seconds after which a run is reconciled without a change: a hang shows as no change."""
STILL: Final = 60.0
"""Seconds without an iteration, or without an answer, after which a reminder is urgent."""


@dataclass(slots=True)
class _Run:
    pods: dict[ProgressTarget, PolledPod]
    task: asyncio.Task[None] | None = None
    reading: ProgressReading | None = None
    notified: float = field(default_factory=time.monotonic)
    answered: float = 0.0
    """When a pod last answered, by the monotonic clock, as `moved`: the wall clock may be set."""
    moved: float = 0.0
    """When phase, iteration or generation last changed, or ranks were last seen to load or evaluate."""
    changed: float = 0.0
    """When phase, iteration or generation last changed."""
    active: str = ""
    """When a pod last reported that its ranks still load or evaluate."""
    silent_since: float | None = None
    """Since when no pod has answered although all were asked; None once one answers."""
    problem: str = ""
    """What became of the last request without an answer."""
    resting: bool = False
    """Whether an iteration is no reason to reconcile the run."""

    def set_targets(self, targets: tuple[ProgressTarget, ...]) -> None:
        """Poll these pods; what is known of those that stay is kept."""
        self.pods = {target: self.pods.get(target) or PolledPod(target) for target in targets}
        if not targets:
            self.silent_since = None

    def add_answer(self, pod: PolledPod, report: ProgressReport) -> None:
        """Record that a pod answered."""
        pod.report, pod.answered = report, time.monotonic()
        pod.silent_since = self.silent_since = None

    def add_silence(self, pod: PolledPod, asked: float, problem: str) -> None:
        """Record that a request to a pod, sent at `asked`, has no answer."""
        self.problem = f"{pod.target.pod}: {problem}"
        if pod.silent_since is None:
            pod.silent_since = asked
        since = [each.silent_since for each in self.pods.values()]
        known = [each for each in since if each is not None]
        if self.silent_since is None and known and len(known) == len(since):
            self.silent_since = max(known)


def _motion(report: ProgressReport) -> tuple[Any, ...]:
    """What changes while a run makes progress."""
    return report.phase, report.iteration, report.generation


def _active(reports: Iterable[ProgressReport]) -> str:
    """When a pod last reported that its ranks load or evaluate. It is progress: both may take hours."""
    active = (each.updated_at or "" for each in reports if each.phase in ("loading", "evaluating"))
    return max(active, default="")


def _notable(report: ProgressReport, *, resting: bool) -> tuple[Any, ...]:
    """What a recipe is reconciled for."""
    slow = {each.rank for each in report.stragglers}
    iteration = None if resting else report.iteration
    return report.phase, report.checkpoint_iteration, iteration, report.warnings, slow


def _disturbance(report: ProgressReport) -> tuple[Any, ...]:
    """What a recipe is reconciled for before others are."""
    return report.generation, report.incidents


def _patience(before: ProgressReport | None, report: ProgressReport, *, resting: bool) -> float | None:
    """How long the recipe may wait to be reconciled for this answer; None where it need not be."""
    if before is None:
        return NORMAL
    if _disturbance(before) != _disturbance(report):
        return URGENT
    return None if _notable(before, resting=resting) == _notable(report, resting=resting) else NORMAL


class ProgressPoller:
    """Polls pods, keeps the last answer of each run, and notifies of runs whose answer changed.

    `notify` gets the patience with which the recipe is to be reconciled, as `WorkQueue.add` takes it.

    Each run is polled in rounds of its own. A round waits for its pods, except for those that let the last
    request time out: they rest, are asked again less and less often, and do not delay the others' answers.
    Nothing here is persistent: a restarted operator polls again.
    """

    def __init__(
        self, settings: Settings, notify: Callable[[RecipeKey, float], None], now: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._notify = notify
        self._now = now
        self._runs: dict[RecipeKey, _Run] = {}
        self._added: asyncio.Queue[tuple[RecipeKey, _Run]] = asyncio.Queue()
        self._answering: set[RecipeKey] = set()
        """Runs whose last round had an answer."""
        self._slots = {standing: Slots(count) for standing, count in CONCURRENCY.items()}
        self._parsing = asyncio.Lock()

    def watch(self, key: RecipeKey, targets: tuple[ProgressTarget, ...]) -> None:
        """Poll these pods from now on; the last answer stays until one of them answers."""
        if len(targets) > ALL_PODS_UP_TO:
            targets = (targets[0], targets[-1])
        run = self._runs.get(key)
        if run is None:
            run = self._runs[key] = _Run({})
            self._added.put_nowait((key, run))
        run.set_targets(targets)

    def rest(self, key: RecipeKey, resting: bool) -> None:
        """Whether iterations alone cause no notification from now on, but each REMIND seconds.

        For a run of which they change nothing but figures, which are written that seldom.
        """
        if (run := self._runs.get(key)) is not None:
            run.resting = resting

    def forget(self, key: RecipeKey) -> None:
        """Stop polling a run."""
        run = self._runs.pop(key, None)
        self._answering.discard(key)
        if run is not None and run.task is not None:
            run.task.cancel()

    def reading(self, key: RecipeKey) -> ProgressReading | None:
        """The last answer of a run's pods; None before the first."""
        run = self._runs.get(key)
        if run is None or run.reading is None:
            return None
        return replace(run.reading, answered=self._now() - (time.monotonic() - run.answered))

    def silence(self, key: RecipeKey) -> Silence | None:
        """Since when a run's pods have been asked without an answer; None while one answers."""
        run = self._runs.get(key)
        if run is None or run.silent_since is None:
            return None
        return Silence(time.monotonic() - run.silent_since, run.problem)

    async def run(self) -> None:
        """Poll until cancelled."""
        async with asyncio.TaskGroup() as runs:
            while True:
                key, run = await self._added.get()
                if self._runs.get(key) is run:
                    run.task = runs.create_task(self._follow(key, run), name=f"progress of {key}")

    async def _follow(self, key: RecipeKey, run: _Run) -> None:
        """Poll one run until it is forgotten; its requests end with it."""
        async with asyncio.TaskGroup() as requests:
            while True:
                began = time.monotonic()
                try:
                    await self._poll(key, run, requests)
                except Exception as error:
                    log.error("%s: its progress cannot be polled", key, exc_info=error)
                await asyncio.sleep(max(0.0, began + self._interval() - time.monotonic()))

    def _interval(self) -> float:
        """Seconds between two rounds of a run. Runs that do not answer cost little, and do not count."""
        spread = min(len(self._answering) / RUNS_PER_SECOND, LONGEST_INTERVAL)
        return max(self._settings.progress_interval, spread)

    async def _poll(self, key: RecipeKey, run: _Run, requests: asyncio.TaskGroup) -> None:
        """One round: ask the pods that are due, and publish what those that usually answer report."""
        began = time.monotonic()
        due = [pod for pod in run.pods.values() if pod.due()]
        awaited = [pod for pod in due if pod.standing is not Standing.SILENT] or due
        for pod in due:
            pod.request = requests.create_task(self._ask(key, run, pod))
        if awaited:
            await asyncio.wait([pod.request for pod in awaited if pod.request is not None])
        reports = {
            pod.target.node_rank: pod.report
            for pod in run.pods.values()
            if pod.report is not None and pod.answered >= began
        }
        moment = time.monotonic()
        patience = None
        if reports:
            self._answering.add(key)
            patience = self._publish(run, reports)
        elif due:
            self._answering.discard(key)
        if patience is None and moment - run.notified >= REMIND:
            is_still = run.reading is not None and moment - run.moved >= STILL
            patience = URGENT if is_still else ROUTINE
        if patience is not None:
            run.notified = moment
            self._notify(key, patience)

    def _publish(self, run: _Run, reports: dict[int, ProgressReport]) -> float | None:
        """Set the run's reading; returns with which patience to reconcile its recipe, None if not at all."""
        report = merge_reports(reports)
        answered = max(pod.answered for pod in run.pods.values())
        before = None if run.reading is None else run.reading.report
        active = _active(reports.values())
        changed = before is None or _motion(before) != _motion(report)
        if changed:
            run.changed = answered
        if changed or active > run.active:
            run.moved, run.active = answered, active
        reached = None if run.reading is None else run.reading.reached
        if before is not None and before.generation != report.generation:
            reached = before.iteration
        run.answered = answered
        run.reading = ProgressReading(
            report,
            self._now(),
            unchanged=answered - run.changed,
            unmoved=answered - run.moved,
            reached=reached,
        )
        return _patience(before, report, resting=run.resting)

    async def _ask(self, key: RecipeKey, run: _Run, pod: PolledPod) -> None:
        """Send a pod one request, and record what becomes of it."""
        async with self._slots[pod.standing].held() as asked:
            try:
                report = await self._fetch(key, pod.target)
            except TimeoutError:
                pod.timed_out(self._longest_rest())
                run.add_silence(pod, asked, f"no answer within {TIMEOUT:.0f} s")
                return
            except Exception as error:
                run.add_silence(pod, asked, self._describe(key, pod, error))
            else:
                pod.refused = False
                run.add_answer(pod, report)
            pod.responded(time.monotonic() - asked)

    def _describe(self, key: RecipeKey, pod: PolledPod, error: Exception) -> str:
        """Log why a pod's answer cannot be used; returns it in a few words."""
        name = pod.target.pod
        if isinstance(error, AnswerError | WireError):
            log.log(logging.DEBUG if pod.refused else logging.WARNING, "%s: %s: %s", key, name, error)
            pod.refused = True
            return str(error)
        if isinstance(error, OSError):
            log.debug("%s: no progress from %s: %r", key, name, error)
            return error.strerror or type(error).__name__
        log.error("%s: the progress of %s cannot be read", key, name, exc_info=error)
        return f"unexpected {type(error).__name__}"

    def _longest_rest(self) -> int:
        interval = max(self._interval(), LONGEST_REST_SECONDS / LONGEST_REST)
        return int(LONGEST_REST_SECONDS / interval)

    async def _fetch(self, key: RecipeKey, target: ProgressTarget) -> ProgressReport:
        """A pod's report. Raises AnswerError, WireError and OSError."""
        host = f"[{target.ip}]" if ":" in target.ip else target.ip
        url = self._settings.progress_url.format(
            ip=host, port=PROGRESS_PORT, namespace=key.namespace, pod=target.pod
        )
        body = await fetch(url, TIMEOUT)
        async with self._parsing:
            # The largest answer takes 15 ms; between two of them the event loop has a turn.
            report = ProgressReport.parse(load_json(body))
            await asyncio.sleep(0)
        return report
