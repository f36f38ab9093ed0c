"""Which Events are posted, and in which form."""

import re
from typing import Any

from megatron_operator.api.reasons import Reason
from megatron_operator.controller import metrics
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.event_budget import (
    BURST,
    RESERVED,
    SECONDS_PER_EVENT,
    SUMMARY_EVERY,
    EventBudget,
)
from megatron_operator.controller.events import EventPoster
from megatron_operator.lifecycle.status_builder import RecipeKey, StatusBuilder

from tests.unit.conftest import Run

KEY = RecipeKey("default", "run")
OTHER = RecipeKey("default", "other")
DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class Recorder:
    """Takes what is posted."""

    def __init__(self) -> None:
        self.posted: list[dict[str, Any]] = []

    async def create(self, _resource: object, body: dict[str, Any]) -> None:
        if body["metadata"]["name"] in {each["metadata"]["name"] for each in self.posted}:
            raise ApiError(409, "AlreadyExists", "exists")
        self.posted.append(body)

    def reasons(self) -> list[str]:
        return [each["reason"] for each in self.posted]


class Poster:
    """An EventPoster with a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.api = Recorder()
        api: Any = self.api
        self.poster = EventPoster(api, EventBudget(lambda: self.now))

    async def post(self, *events: tuple[str, str], name: str = "run") -> StatusBuilder:
        run = Run()
        run.body["metadata"]["name"] = name
        status = run.status()
        for reason, message in events:
            status.add_event(reason, message, warning=True)
        await self.poster.post(status)
        return status


def dropped() -> float:
    value: float = metrics.EVENTS_DROPPED._value.get()
    return value


async def test_a_flood_of_pod_warnings_leaves_room_for_the_operators_own_events() -> None:
    poster, before = Poster(), dropped()
    await poster.post(*(("FromThePod", str(number)) for number in range(1000)))
    assert poster.api.reasons() == ["FromThePod"] * (BURST - RESERVED)
    assert dropped() - before == 1000 - (BURST - RESERVED)
    await poster.post(*((Reason.RANK_RESTARTED, str(number)) for number in range(1000)))
    assert poster.api.reasons().count(Reason.RANK_RESTARTED) == RESERVED - 1
    assert poster.api.reasons().count(Reason.EVENTS_DROPPED) == 1
    assert len(poster.api.posted) == BURST


async def test_what_was_left_out_is_reported_once_there_is_room() -> None:
    poster = Poster()
    await poster.post(*((Reason.RANK_RESTARTED, str(number)) for number in range(BURST + 7)))
    assert Reason.EVENTS_DROPPED not in poster.api.reasons()
    poster.now += SECONDS_PER_EVENT
    await poster.post()
    assert poster.api.posted[-1]["message"] == "7 Events of this recipe were not posted: they came too fast"
    for _ in range(5):
        poster.now += SECONDS_PER_EVENT
        await poster.post(*((Reason.RANK_RESTARTED, f"{poster.now} {number}") for number in range(5)))
    assert poster.api.reasons().count(Reason.EVENTS_DROPPED) == 1
    poster.now += SUMMARY_EVERY
    await poster.post()
    assert poster.api.posted[-1]["message"].startswith("20 Events")


def test_after_the_burst_one_event_is_posted_in_each_interval() -> None:
    now = [0.0]
    budget = EventBudget(lambda: now[0])
    assert sum(budget.take(KEY, own=True) for _ in range(1000)) == BURST
    for _ in range(10):
        now[0] += SECONDS_PER_EVENT
        assert sum(budget.take(KEY, own=True) for _ in range(100)) == 1
    now[0] += 1000 * SECONDS_PER_EVENT
    assert sum(budget.take(KEY, own=True) for _ in range(1000)) == BURST


def test_one_recipe_does_not_spend_the_budget_of_another() -> None:
    budget = EventBudget(lambda: 0.0)
    assert sum(budget.take(KEY, own=True) for _ in range(1000)) == BURST
    assert budget.take(OTHER, own=False)


def test_the_budgets_of_recipes_that_are_gone_are_not_kept() -> None:
    now = [0.0]
    budget = EventBudget(lambda: now[0])
    for number in range(50_000):
        budget.take(RecipeKey("default", f"run-{number}"), own=True)
        now[0] += SECONDS_PER_EVENT
    assert len(budget._buckets) <= 1024


async def test_an_event_has_a_name_and_a_message_that_the_api_server_takes() -> None:
    for name in ("run", "r" * 253, "a." * 126 + "a"):
        poster = Poster()
        await poster.post((Reason.JOB_FAILED, "😀" * 5000), name=name)
        (event,) = poster.api.posted
        assert len(event["metadata"]["name"]) <= 253
        assert DNS_SUBDOMAIN.fullmatch(event["metadata"]["name"])
        assert len(event["message"].encode()) == 1024
        assert event["involvedObject"]["name"] == name


async def test_an_event_that_is_repeated_leaves_room_for_others() -> None:
    poster, before = Poster(), dropped()
    for _ in range(10 * BURST):
        await poster.post((Reason.NODE_NOT_AVOIDED, "node-1"))
    await poster.post(*((Reason.RANK_RESTARTED, str(number)) for number in range(BURST - 1)))
    assert len(poster.api.posted) == BURST
    assert dropped() == before
    await poster.post((Reason.RANK_RESTARTED, "one too many"))
    assert dropped() == before + 1


async def test_the_same_event_is_posted_once() -> None:
    poster = Poster()
    await poster.post((Reason.JOB_FAILED, "cause"))
    await poster.post((Reason.JOB_FAILED, "cause"))
    assert len(poster.api.posted) == 1
