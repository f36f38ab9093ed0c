"""When the poller notifies, and what it keeps of the answers."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from megatron_contract.progress import ProgressReport
from megatron_operator.controller.progress_poller import ProgressPoller
from megatron_operator.controller.settings import Settings
from megatron_operator.lifecycle.progress_reading import ProgressReading, ProgressTarget
from megatron_operator.lifecycle.status_builder import RecipeKey

REPORT: dict[str, Any] = {"schema": 1, "phase": "training", "iteration": 7, "generation": 1}
TARGET = ProgressTarget("run-master-0", "10.0.0.1", 0)


class OnePodPoller(ProgressPoller):
    """Polls one pod, whose answer the test sets."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.report: dict[str, Any] | None = REPORT
        self.notified: list[RecipeKey] = []
        super().__init__(Settings(), self.notified.append, now)
        self.key = RecipeKey("default", "run")
        self.watch(self.key, (TARGET,))

    async def _fetch(self, *_: Any) -> ProgressReport | None:
        return None if self.report is None else ProgressReport.parse(self.report)

    def poll(self) -> ProgressReading:
        none: Any = None
        asyncio.run(self._poll(none, self.key, self._runs[self.key]))
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


class Response:
    """Stands in for a pod's HTTP response."""

    def __init__(self, body: Any) -> None:
        self._body = body

    async def __aenter__(self) -> "Response":
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def raise_for_status(self) -> None: ...

    async def json(self, **_: Any) -> Any:
        return self._body


class Session:
    def __init__(self, body: Any) -> None:
        self._body = body

    def get(self, _url: str) -> Response:
        return Response(self._body)


def fetch(body: Any) -> ProgressReport | None:
    poller = ProgressPoller(Settings(), lambda _key: None, time.time)
    session: Any = Session(body)
    return asyncio.run(poller._fetch(session, RecipeKey("default", "run"), TARGET))


def test_a_valid_report_is_parsed() -> None:
    assert fetch(REPORT) == ProgressReport.parse(REPORT)


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
def test_a_report_that_violates_the_contract_is_logged_and_ignored(
    body: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert fetch(body) is None
    assert "default/run: run-master-0: " in caplog.text
