"""A run that was on its way to other places when the operator restarted keeps them."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from megatron_operator.api.conditions import Phase
from megatron_operator.api.recovery_status import RecoveryStatus
from megatron_operator.controller.api_client import RECIPES
from megatron_operator.controller.capacity_finder import CapacityFinder
from megatron_operator.controller.node_watch import NodeWatch
from megatron_operator.controller.object_cache import ObjectCache
from megatron_operator.lifecycle.growths import LONGEST_GROWTH
from megatron_operator.lifecycle.incidents import recovered, resized
from megatron_operator.lifecycle.maintenance import moved
from megatron_operator.lifecycle.observation import MaintenanceMove
from megatron_operator.lifecycle.status_builder import StatusBuilder

from tests.unit.controller.test_growing_runs import NOW, AnyCount, ShrunkRun
from tests.unit.controller.test_moving_runs import AnnouncingNodes, LeavingRun

GROWN = resized(RecoveryStatus(), 16, 16, "accelerators are free", NOW, iteration=5)
CHANGED = RecoveryStatus(outgoing_job="job-1")
LEAVING = MaintenanceMove({"x": "node taint y"}, {"x": "node taint y"})


def recipe(recovery: RecoveryStatus, version: int, phase: Phase = Phase.RECOVERING, **spec: Any) -> Any:
    metadata = {"name": "two", "namespace": "research", "uid": "two", "generation": 1}
    body = {"metadata": metadata | {"resourceVersion": str(version)}, "spec": spec}
    status = StatusBuilder.of(body, NOW)
    status.set(phase=phase, recovery=recovery)
    return body | {"status": status.patch()["status"]}


class Restarted:
    """An operator that has just started, and what the recipe of another run had then."""

    def __init__(self, other: Any) -> None:
        self.recipes = ObjectCache(RECIPES)
        self.recipes.put(other)
        api: Any = AnnouncingNodes()
        planning: Any = AnyCount()
        self.watch = NodeWatch(api, lambda _run: None)
        self.finder = CapacityFinder(api, planning, self.watch, self.recipes, allowed=True)
        self.run = ShrunkRun("one", "a", self.finder)

    async def grows(self) -> bool:
        """Whether the run, for which there is room, is given it."""
        assert await self.run.larger() == 16
        return self.run.grow()


@pytest.mark.parametrize(
    "recovery",
    [GROWN, CHANGED, moved(RecoveryStatus(), LEAVING, None, NOW, iteration=5)],
    ids=["resized", "changed-its-domain", "moved"],
)
def test_after_a_restart_a_run_grows_once_those_on_their_way_have_arrived(recovery: RecoveryStatus) -> None:
    async def scenario() -> None:
        operator = Restarted(recipe(recovery, 1))
        assert not await operator.grows()
        assert not await operator.grows()
        operator.recipes.put(recipe(RecoveryStatus(), 2, Phase.TRAINING))
        assert not await operator.grows(), "its pods may be on what was found free"
        assert await operator.grows()

    asyncio.run(scenario())


def forget(recipes: ObjectCache) -> None:
    recipes.discard("research", "two")


def suspend(recipes: ObjectCache) -> None:
    recipes.put(recipe(GROWN, 2, suspend=True))


def recover(recipes: ObjectCache) -> None:
    recipes.put(recipe(recovered(GROWN, NOW, resumed_from=5), 2))


@pytest.mark.parametrize("end", [forget, suspend, recover])
def test_a_run_that_needs_its_places_no_longer_is_not_waited_for(
    end: Callable[[ObjectCache], None],
) -> None:
    async def scenario() -> None:
        operator = Restarted(recipe(GROWN, 1))
        assert not await operator.grows()
        end(operator.recipes)
        assert not await operator.grows()
        assert await operator.grows()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "other",
    [
        recipe(resized(RecoveryStatus(), 16, 16, "", NOW - LONGEST_GROWTH, iteration=5), 1),
        recipe(RecoveryStatus(), 1),
        recipe(GROWN, 1, Phase.SUCCEEDED),
    ],
    ids=["began-long-ago", "recovers-in-its-places", "has-ended"],
)
def test_runs_that_are_not_on_their_way_keep_nobody_waiting(other: Any) -> None:
    assert asyncio.run(Restarted(other).grows())


def test_a_run_does_not_wait_for_itself() -> None:
    other = recipe(GROWN, 1)
    other["metadata"]["name"] = "one"
    assert asyncio.run(Restarted(other).grows())


def test_a_change_of_the_domain_that_does_not_end_is_not_waited_for_any_longer() -> None:
    async def scenario() -> None:
        operator = Restarted(recipe(CHANGED, 1))
        assert not await operator.grows()
        operator.run.status.now += LONGEST_GROWTH
        assert not await operator.grows()
        assert await operator.grows()

    asyncio.run(scenario())


def test_after_a_restart_a_run_leaves_its_node_once_those_on_their_way_have_arrived() -> None:
    async def scenario() -> None:
        operator = Restarted(recipe(GROWN, 1))
        await operator.watch.refresh()
        run = LeavingRun("one", "a", operator.finder)
        assert await run.may_move()
        assert not run.move()
        operator.recipes.put(recipe(RecoveryStatus(), 2, Phase.TRAINING))
        assert (await run.may_move(), run.move()) == (True, False)
        assert (await run.may_move(), run.move()) == (True, True)

    asyncio.run(scenario())


def test_a_growth_that_this_operator_decided_keeps_nobody_waiting_who_has_other_places() -> None:
    async def scenario() -> None:
        operator = Restarted(recipe(RecoveryStatus(), 1, Phase.TRAINING))
        assert await operator.grows()
        operator.recipes.put(recipe(GROWN, 2))
        assert (await operator.run.larger(), operator.run.grow()) == (16, True)

    asyncio.run(scenario())
