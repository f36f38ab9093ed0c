"""The web page over a run whose status and log others wrote."""

import asyncio
import json
import re
from functools import cache
from html.parser import HTMLParser
from typing import Any, Final

import httpx
from megatron_operator.lifecycle.status_reading import read_status
from megatron_operator.sdk.losses import loss_points
from megatron_operator.ui.access import KeyAccess
from megatron_operator.ui.app import Settings, application
from megatron_operator.ui.failure_log import FailureLog
from megatron_operator.ui.history import MemoryRecorder, RunHistory
from megatron_operator.ui.points import measured_memory, points_of_log
from megatron_operator.ui.published import PublishedRecipes
from megatron_operator.ui.runs import RunLogs

from testkit.example_runs import NOW, ExampleRuns, training_run

KEY: Final = "key"
_LARGE_INTEGER: Final = re.compile(r"\d{19}")
_STEP: Final = {
    "iteration": 10,
    "lmLoss": 2.5,
    "learningRate": 3e-4,
    "milliseconds": 1500.0,
    "samples": 80,
}
SEED: Final[dict[str, Any]] = {
    "status": training_run("run")["status"],
    "steps": [_STEP, _STEP | {"iteration": 20}],
    "lines": ["2026-01-01T00:00:00Z [Rank 0] memory (MB) | allocated: 1.0 | max reserved: 2.5"],
}


class ActiveContent(HTMLParser):
    """Finds what no page has, whatever is in a status: scripts and links of others, pictures, handlers."""

    found: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag that would run something, or load something from elsewhere."""
        values = {name: value or "" for name, value in attrs}
        own = all(
            values.get(name, "/").startswith(("/", "#", "?", "data:,")) for name in ("src", "href", "action")
        )
        if tag in ("img", "iframe") or not own or any(name.startswith("on") for name in values):
            self.found = f"<{tag} {' '.join(values)}>"


class FuzzedRuns(ExampleRuns):
    """One run, whose log was read."""

    log = RunLogs()

    async def pods(self, recipe: dict[str, Any]) -> list[dict[str, Any]]:  # noqa: ARG002
        """None."""
        return []

    async def logs(self, recipe: dict[str, Any]) -> RunLogs:  # noqa: ARG002
        """What was taken from the lines."""
        return self.log

    async def history(self, recipe: dict[str, Any]) -> RunHistory:
        """The point of the status."""
        recorder = MemoryRecorder()
        recorder.observe(recipe)
        return await recorder.history(recipe)


@cache
def _page() -> tuple[FuzzedRuns, httpx.AsyncClient, asyncio.Runner]:
    runs = FuzzedRuns([])
    options: dict[str, Any] = {"now": lambda: NOW}
    app = application(Settings(runs, KeyAccess(KEY), PublishedRecipes(None, None), **options))
    client = httpx.AsyncClient(
        transport=httpx.ASGITransport(app),
        base_url="http://page",
        headers={"Authorization": f"Bearer {KEY}"},
    )
    return runs, client, asyncio.Runner()


def problem(text: str) -> str | None:
    """What is wrong with the pages of a run with this status, steps and lines; None if nothing."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("status"), dict):
        return None
    if _LARGE_INTEGER.search(json.dumps(found["status"])):
        return None  # the API server stores integers of 64 bits
    runs, client, runner = _page()
    recipe = training_run("run") | {"status": found["status"]}
    runs.recipes = {("research", "run"): recipe}
    lines = _lines(found)
    plan = read_status(recipe["status"])[0].plan
    runs.log = RunLogs(
        tuple(points_of_log(loss_points(lines), plan)),
        measured_memory(lines),
        FailureLog("pod", "\n".join(lines), "Its log.", "\n".join(lines)),
    )
    for path in ("/", "/runs/research/run?rank=1", "/compare?a=research/run&b=research/run"):
        response = runner.run(client.get(path))
        if response.status_code != 200:
            return f"{path} answers {response.status_code}"
        parser = ActiveContent()
        parser.feed(response.text)
        if parser.found:
            return f"{path} has {parser.found}"
    return None


def _lines(found: dict[str, Any]) -> list[str]:
    """Lines as Megatron prints them, with the steps' values, and the lines as they are."""
    steps = found.get("steps")
    named = [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    printed = [
        "2026-01-01T00:00:00Z  [2026] iteration {}/ 100 | consumed samples: {} | elapsed time per iteration"
        " (ms): {} | learning rate: {} | lm loss: {} |".format(
            *(step.get(name) for name in ("iteration", "samples", "milliseconds", "learningRate", "lmLoss"))
        )
        for step in named
    ]
    others = found.get("lines")
    return [*printed, *(str(each)[:2000] for each in (others if isinstance(others, list) else []))]
