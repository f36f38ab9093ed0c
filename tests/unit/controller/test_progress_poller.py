"""One report of what several pods say."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from megatron_operator.controller.progress_poller import Poller, Reading, Target, merge
from megatron_operator.controller.settings import Settings
from megatron_operator.controller.workqueue import Key


def test_the_first_pod_speaks_and_others_fill_in_what_it_cannot_know() -> None:
    first = {"phase": "training", "nodeRank": 0, "iteration": 7, "lmLoss": None, "generation": 2}
    last = {"phase": "loading", "nodeRank": 3, "iteration": 8, "lmLoss": 2.5, "generation": 2}
    merged = merge({0: first, 3: last})
    assert merged["phase"] == "training"
    assert merged["lmLoss"] == 2.5
    assert merged["iteration"] == 8


def test_without_the_first_pod_the_next_one_speaks() -> None:
    merged = merge({2: {"phase": "rendezvous", "iteration": None}})
    assert (merged["phase"], merged["iteration"]) == ("rendezvous", None)


def test_a_new_pod_that_knows_of_no_incident_yet_hides_none() -> None:
    old = [{"generation": 2, "metAt": None}]
    newer = [{"generation": 2, "metAt": 5.0}]
    for reports in (
        {0: {"incidents": []}, 1: {"incidents": newer}},
        {0: {"incidents": old}, 1: {"incidents": newer}},
    ):
        assert merge(reports)["incidents"] == newer


def test_every_pods_warnings_are_told_once() -> None:
    low, slow = {"reason": "CheckpointVolumeLow"}, {"reason": "SlowRank"}
    assert merge({0: {"warnings": [low]}, 1: {"warnings": [low, slow]}})["warnings"] == [low, slow]


class Said(Poller):
    """Asks one pod, which answers what the test wrote down."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.report: dict[str, Any] | None = None
        self.news: list[Key] = []
        super().__init__(Settings(), self.news.append, now)
        self.key = Key("default", "run")
        self.watch(self.key, (Target("run-master-0", "10.0.0.1", 0),))

    async def _fetch(self, *_: Any) -> dict[str, Any] | None:
        return self.report

    def look(self) -> Reading:
        none: Any = None
        asyncio.run(self._ask(none, self.key, self._runs[self.key]))
        reading = self.reading(self.key)
        assert reading is not None
        return reading


def test_a_clock_that_is_set_makes_no_answer_older(monkeypatch: Any) -> None:
    moment, clock = [100.0], [1_800_000_000.0]
    poller = Said(lambda: clock[0])
    monkeypatch.setattr(time, "monotonic", lambda: moment[0])
    poller.report = {"schema": 1, "phase": "training", "iteration": 7, "generation": 1}
    poller.look()
    moment[0] += 2
    clock[0] += 3600
    later = poller.reading(poller.key)
    assert later is not None
    assert later.answered == clock[0] - 2
    assert poller.look().unmoved == 2


def test_silence_is_not_taken_for_standing_still(monkeypatch: Any) -> None:
    poller, moment = Said(), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: moment[0])
    poller.report = {"schema": 1, "phase": "training", "iteration": 7, "generation": 1}
    poller.look()
    poller.report, moment[0] = None, 700.0
    assert poller.look().unmoved == 0


def test_news_are_progress_incidents_and_warnings_not_figures() -> None:
    poller = Said()
    poller.report = {"schema": 1, "phase": "training", "iteration": 7, "generation": 1, "lmLoss": 2.0}
    poller.look()
    poller.report = poller.report | {"lmLoss": 1.9, "usefulSeconds": 12.0}
    poller.look()
    assert len(poller.news) == 1
    poller.report = poller.report | {"incidents": [{"generation": 2, "metAt": None}]}
    poller.look()
    assert len(poller.news) == 2
