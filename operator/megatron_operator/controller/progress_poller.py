"""How far runs are: one task asks the pods of all of them, a bounded number at once."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import aiohttp
from megatron_contract.environment import PROGRESS_PORT
from megatron_contract.progress import PROGRESS_SCHEMA

from megatron_operator.controller.settings import Settings
from megatron_operator.controller.workqueue import Key

log = logging.getLogger(__name__)

TIMEOUT: Final = aiohttp.ClientTimeout(total=2.0)
AT_ONCE: Final = 32
"""Requests in flight, over all runs."""
ALL_PODS_UP_TO: Final = 8
"""In larger gangs the first and the last pod alone are asked: rank 0, and the stage that knows the loss."""
RUNS_A_SECOND: Final = 50
"""With more runs than that in an interval the interval grows."""
REMIND: Final = 30.0
"""Seconds after which a run is looked at although its pods say nothing new: hangs show by silence."""

MOTION: Final = ("phase", "iteration", "generation")
"""What moves while a run gets on."""
NEWS: Final = (*MOTION, "checkpointIteration", "incidents", "warnings")
"""What a recipe is looked at for."""

Report = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """A pod that can be asked."""

    pod: str
    ip: str
    node_rank: int


@dataclass(slots=True)
class Reading:
    """What the pods of one run last said."""

    report: Report
    answered: float
    """Seconds since the epoch, by the clock as it is when this is looked at."""
    rank_restarts: int = 0
    unmoved: float = 0.0
    """Seconds for which pods have answered and phase, iteration and generation have stayed as they are."""


@dataclass(slots=True)
class _Run:
    targets: tuple[Target, ...]
    reading: Reading | None = None
    reminded: float = field(default_factory=time.monotonic)
    answered: float = 0.0
    """By the monotonic clock, as `moved`: the other may be set."""
    moved: float = 0.0


def merge(reports: dict[int, Report]) -> Report:
    """One report of the pods' by node rank: the first pod's, with what only others know filled in.

    The loss is known to the last pipeline stage alone, which may lie in another pod.
    """
    ranks = sorted(reports)
    merged = dict(reports[ranks[0]])
    for rank in ranks[1:]:
        for name, value in reports[rank].items():
            if merged.get(name) is None and value is not None:
                merged[name] = value
    iterations = [r["iteration"] for r in reports.values() if isinstance(r.get("iteration"), int)]
    merged["iteration"] = max(iterations, default=None)
    # A pod that is new learns of what was before it from the first one.
    merged["incidents"] = max((_dicts(r, "incidents") for r in reports.values()), key=_age)
    said = [each for rank in ranks for each in _dicts(reports[rank], "warnings")]
    merged["warnings"] = [each for index, each in enumerate(said) if each not in said[:index]]
    return merged


def _dicts(report: Report, name: str) -> list[Report]:
    value = report.get(name)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _age(incidents: list[Report]) -> tuple[int, int]:
    """More is newer: the generation that the last one began, and what is known of it."""
    if not incidents:
        return -1, 0
    last = incidents[-1]
    generation = last.get("generation")
    known = sum(value is not None for value in last.values())
    return (generation if isinstance(generation, int) else -1), known


class Poller:
    """Asks, remembers the last answer, and has recipes looked at whose answer changed.

    Nothing here needs to survive: a restarted operator asks again.
    """

    def __init__(self, settings: Settings, notify: Callable[[Key], None], now: Callable[[], float]) -> None:
        self._settings = settings
        self._notify = notify
        self._now = now
        self._runs: dict[Key, _Run] = {}
        self._at_once = asyncio.Semaphore(AT_ONCE)

    def watch(self, key: Key, targets: tuple[Target, ...]) -> None:
        """Ask these pods from now on; what was said before stays until one of them answers."""
        if len(targets) > ALL_PODS_UP_TO:
            targets = (targets[0], targets[-1])
        run = self._runs.get(key)
        if run is None:
            self._runs[key] = _Run(targets)
        else:
            run.targets = targets

    def forget(self, key: Key) -> None:
        self._runs.pop(key, None)

    def reading(self, key: Key) -> Reading | None:
        run = self._runs.get(key)
        if run is None or run.reading is None:
            return None
        return replace(run.reading, answered=self._now() - (time.monotonic() - run.answered))

    async def run(self) -> None:
        async with aiohttp.ClientSession(timeout=TIMEOUT) as session:
            while True:
                interval = max(self._settings.progress_interval, len(self._runs) / RUNS_A_SECOND)
                await asyncio.sleep(interval)
                runs = list(self._runs.items())
                asked = await asyncio.gather(
                    *(self._ask(session, key, run) for key, run in runs), return_exceptions=True
                )
                for (key, _), problem in zip(runs, asked, strict=True):
                    if isinstance(problem, Exception):
                        log.error("%s: its progress could not be asked for", key, exc_info=problem)

    async def _ask(self, session: aiohttp.ClientSession, key: Key, run: _Run) -> None:
        targets = run.targets
        answers = await asyncio.gather(*(self._fetch(session, key, target) for target in targets))
        reports = {
            target.node_rank: answer
            for target, answer in zip(targets, answers, strict=True)
            if answer is not None
        }
        moment = time.monotonic()
        changed = moment - run.reminded >= REMIND
        if reports:
            report = merge(reports)
            before = run.reading.report if run.reading is not None else {}
            if run.reading is None or _pick(before, MOTION) != _pick(report, MOTION):
                run.moved = moment
            changed = changed or run.reading is None or _pick(before, NEWS) != _pick(report, NEWS)
            restarts = sum(int(r.get("rankRestarts") or 0) for r in reports.values())
            run.answered = moment
            run.reading = Reading(report, self._now(), restarts, moment - run.moved)
        if changed:
            run.reminded = moment
            self._notify(key)

    async def _fetch(self, session: aiohttp.ClientSession, key: Key, target: Target) -> Report | None:
        host = f"[{target.ip}]" if ":" in target.ip else target.ip
        url = self._settings.progress_url.format(
            ip=host, port=PROGRESS_PORT, namespace=key.namespace, pod=target.pod
        )
        try:
            async with self._at_once, session.get(url) as response:
                response.raise_for_status()
                report = await response.json(content_type=None)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            log.debug("%s: no progress from %s: %r", key, target.pod, error)
            return None
        if not isinstance(report, dict) or report.get("schema") != PROGRESS_SCHEMA:
            log.warning("%s: %s tells progress in a form that is not known here", key, target.pod)
            return None
        return report


def _pick(report: Report, names: tuple[str, ...]) -> list[Any]:
    return [report.get(name) for name in names]
