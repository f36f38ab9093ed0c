"""Polls the progress of all runs from one task, with a bounded number of requests in flight."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from megatron_contract.environment import PROGRESS_PORT
from megatron_contract.progress import ProgressReport
from megatron_contract.wire import WireError, load_json

from megatron_operator.controller.pod_http import AnswerError, fetch
from megatron_operator.controller.settings import Settings
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
CONCURRENCY: Final = 32
"""Requests in flight, over all runs."""
ALL_PODS_UP_TO: Final = 8
"""In larger gangs only the first and the last pod are polled: rank 0, and the stage that knows the loss."""
RUNS_PER_SECOND: Final = 50
"""With more runs than that in an interval, the interval grows."""
LONGEST_REST: Final = 6
"""Rounds that a run whose pods let requests time out is left out, so that it does not delay the others."""
REMIND: Final = 30.0
"""Seconds after which a run is reconciled without a change: a hang shows as no change."""


@dataclass(slots=True)
class _Run:
    targets: tuple[ProgressTarget, ...]
    reading: ProgressReading | None = None
    notified: float = field(default_factory=time.monotonic)
    answered: float = 0.0
    """By the monotonic clock, as `moved`: the wall clock may be set."""
    moved: float = 0.0
    refused: set[str] = field(default_factory=set)
    """Pods whose last answer was refused, which is logged once."""
    silent_since: float | None = None
    """When the first request was sent that has no answer, and none after it has; by the monotonic clock."""
    problem: str = ""
    """What became of the last request without an answer."""
    timed_out: bool = False
    """Whether a request of the current round has timed out."""
    rest: int = 0
    """Rounds of rest after the last one without an answer."""
    resting: int = 0
    """Rounds of it that are left."""

    def due(self) -> bool:
        """Whether to poll the run in this round; to be called once for each."""
        self.resting -= 1
        return self.resting < 0


def _motion(report: ProgressReport) -> tuple[Any, ...]:
    """What changes while a run makes progress."""
    return report.phase, report.iteration, report.generation


def _notable(report: ProgressReport) -> tuple[Any, ...]:
    """What a recipe is reconciled for."""
    return *_motion(report), report.checkpoint_iteration, report.incidents, report.warnings


class ProgressPoller:
    """Polls pods, keeps the last answer of each run, and notifies of runs whose answer changed.

    Nothing here is persistent: a restarted operator polls again.
    """

    def __init__(
        self, settings: Settings, notify: Callable[[RecipeKey], None], now: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._notify = notify
        self._now = now
        self._runs: dict[RecipeKey, _Run] = {}
        self._in_flight = asyncio.Semaphore(CONCURRENCY)
        self._parsing = asyncio.Lock()

    def watch(self, key: RecipeKey, targets: tuple[ProgressTarget, ...]) -> None:
        """Poll these pods from now on; the last answer stays until one of them answers."""
        if len(targets) > ALL_PODS_UP_TO:
            targets = (targets[0], targets[-1])
        run = self._runs.get(key)
        if run is None:
            self._runs[key] = _Run(targets)
        else:
            run.targets = targets

    def forget(self, key: RecipeKey) -> None:
        """Stop polling a run."""
        self._runs.pop(key, None)

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
        while True:
            interval = max(self._settings.progress_interval, len(self._runs) / RUNS_PER_SECOND)
            await asyncio.sleep(interval)
            runs = [(key, run) for key, run in self._runs.items() if run.due()]
            outcomes = await asyncio.gather(
                *(self._poll(key, run) for key, run in runs), return_exceptions=True
            )
            for (key, _), outcome in zip(runs, outcomes, strict=True):
                if isinstance(outcome, Exception):
                    log.error("%s: its progress cannot be polled", key, exc_info=outcome)

    async def _poll(self, key: RecipeKey, run: _Run) -> None:
        targets, run.timed_out, asked = run.targets, False, time.monotonic()
        answers = await asyncio.gather(*(self._fetch(key, run, target) for target in targets))
        reports = {
            target.node_rank: answer
            for target, answer in zip(targets, answers, strict=True)
            if answer is not None
        }
        if reports or not targets:
            run.silent_since = None
        elif run.silent_since is None:
            run.silent_since = asked
        blocked = run.timed_out and not reports
        run.rest = min(2 * run.rest + 1, LONGEST_REST) if blocked else 0
        run.resting = run.rest
        moment = time.monotonic()
        changed = moment - run.notified >= REMIND
        if reports:
            report = merge_reports(reports)
            before = None if run.reading is None else run.reading.report
            if before is None or _motion(before) != _motion(report):
                run.moved = moment
            changed = changed or before is None or _notable(before) != _notable(report)
            restarts = sum(each.rank_restarts for each in reports.values())
            run.answered = moment
            run.reading = ProgressReading(report, self._now(), restarts, moment - run.moved)
        if changed:
            run.notified = moment
            self._notify(key)

    async def _fetch(self, key: RecipeKey, run: _Run, target: ProgressTarget) -> ProgressReport | None:
        host = f"[{target.ip}]" if ":" in target.ip else target.ip
        url = self._settings.progress_url.format(
            ip=host, port=PROGRESS_PORT, namespace=key.namespace, pod=target.pod
        )
        try:
            async with self._in_flight:
                body = await fetch(url, TIMEOUT)
            async with self._parsing:
                # The largest answer takes 15 ms; between two of them the event loop has a turn.
                report = ProgressReport.parse(load_json(body))
                await asyncio.sleep(0)
        except (AnswerError, WireError) as error:
            level = logging.DEBUG if target.pod in run.refused else logging.WARNING
            log.log(level, "%s: %s: %s", key, target.pod, error)
            run.refused.add(target.pod)
            run.problem = f"{target.pod}: {error}"
        except OSError as error:
            timed_out = isinstance(error, TimeoutError)
            run.timed_out = run.timed_out or timed_out
            broken = error.strerror or type(error).__name__
            what = f"no answer within {TIMEOUT:.0f} s" if timed_out else broken
            run.problem = f"{target.pod}: {what}"
            log.debug("%s: no progress from %s: %r", key, target.pod, error)
        else:
            run.refused.discard(target.pod)
            return report
        return None
