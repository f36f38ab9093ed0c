"""Runs that could move to the same node before maintenance are given it one after the other."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from megatron_operator.api.platform import BadNodes, Maintenance
from megatron_operator.api.recovery_status import NodeMaintenance, RecoveryStatus
from megatron_operator.api.times import timestamp
from megatron_operator.controller import room_finder
from megatron_operator.controller.api_resources import Resource
from megatron_operator.controller.capacity_finder import CapacityFinder
from megatron_operator.controller.node_watch import NodeWatch
from megatron_operator.controller.supervisor import Supervisor
from megatron_operator.lifecycle.maintenance import plan_move
from megatron_operator.lifecycle.observation import Limits, Room
from megatron_operator.lifecycle.snapshot import RunSnapshot
from megatron_operator.lifecycle.status_builder import StatusBuilder

from tests.unit.controller.silent_readers import Silent
from tests.unit.controller.test_growing_runs import NOW, SPEC, AnyCount, ShrunkRun, ThreeNodes, pod

LIMITS = Limits(max_restarts=3, rendezvous_timeout=60, avoid_after=2)
JOB: dict[str, Any] = {
    "kind": "PyTorchJob",
    "spec": {
        "nprocPerNode": "8",
        "pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": {"spec": SPEC}}},
    },
}


class LeavingRun:
    """A run of one pod whose node announces maintenance."""

    def __init__(self, name: str, on: str, finder: CapacityFinder) -> None:
        self.finder, bound = finder, pod(name, on)
        since = {"type": "PodScheduled", "status": "True", "lastTransitionTime": timestamp(NOW)}
        bound["status"]["conditions"] = [since]
        metadata = {"name": name, "namespace": "research", "uid": name, "generation": 1}
        self.status = StatusBuilder.of({"metadata": metadata, "spec": {}}, NOW)
        entry = NodeMaintenance(sign="node taint x", time=timestamp(NOW))
        self.status.set(recovery=RecoveryStatus(maintenance={on: entry}))
        self.snapshot = RunSnapshot(NOW, JOB, (bound,))

    async def room(self) -> Room | None:
        return (await self.finder.find(self.status, self.snapshot, LIMITS, Maintenance())).room

    async def may_move(self) -> bool:
        found = plan_move(self.status.recovery, await self.room(), 1, BadNodes(), NOW)
        return found is not None and found.obstacle is None

    def move(self) -> bool:
        return self.finder.move(self.status, 1)


class AnnouncingNodes(ThreeNodes):
    """Nodes a and b announce maintenance; node c is free."""

    async def versioned_pages(
        self, _resource: Resource, _namespace: None
    ) -> AsyncIterator[tuple[str, list[Any]]]:
        taints = [{"key": "karpenter.sh/disrupted"}]
        leaving = [{"metadata": {"name": name}, "spec": {"taints": taints}} for name in ("a", "b")]
        yield "1", [*leaving, {"metadata": {"name": "c"}}]


async def two_runs() -> tuple[LeavingRun, LeavingRun]:
    api: Any = AnnouncingNodes()
    watch = NodeWatch(api, lambda _run: None)
    await watch.refresh()
    planning: Any = AnyCount()
    finder = CapacityFinder(api, planning, watch, allowed=True)
    return LeavingRun("one", "a", finder), LeavingRun("two", "b", finder)


def test_of_two_runs_that_saw_the_same_node_free_one_moves_and_the_other_stays() -> None:
    async def scenario() -> None:
        one, two = await two_runs()
        assert (await one.may_move(), await two.may_move()) == (True, True)
        assert (one.move(), two.move()) == (True, False)
        assert not await two.may_move()

    asyncio.run(scenario())


def test_the_place_of_a_run_that_moves_is_taken_until_it_has_arrived() -> None:
    async def scenario() -> None:
        one, two = await two_runs()
        assert await one.may_move()
        assert one.move()
        assert (await two.room() or Room(9, 9)).pods == 0
        one.status.set(recovery=RecoveryStatus())
        await one.room()
        two.finder.forget(two.status.key)
        assert await two.may_move(), "the list of all pods counts from then on"

    asyncio.run(scenario())


def test_the_place_of_a_run_that_gives_up_its_pods_is_free_for_others() -> None:
    async def scenario() -> None:
        one, two = await two_runs()
        assert await one.may_move()
        assert one.move()
        unused: Any = Silent()
        Supervisor(unused, one.finder, unused).gives_up_pods(one.status.key)
        assert await two.may_move()

    asyncio.run(scenario())


def test_a_node_that_a_run_avoids_as_a_precaution_is_among_those_that_a_later_move_chooses_from() -> None:
    async def scenario() -> None:
        one, _ = await two_runs()
        beside = NodeMaintenance(sign="node taint x", time=timestamp(NOW), avoided_at=timestamp(NOW))
        entries = one.status.recovery.maintenance | {"b": beside}
        one.status.set_recovery(maintenance=entries, nodes_avoided=["b"])
        assert (await one.room() or Room(9, 9, {"b": ""})).announced.keys() == {"a"}
        one.finder.forget(one.status.key)
        entries["b"] = beside.model_copy(update={"precaution": True})
        one.status.set_recovery(maintenance=entries)
        assert (await one.room() or Room(9, 9)).announced.keys() == {"a", "b"}

    asyncio.run(scenario())


@pytest.mark.parametrize(("obstacle", "reads"), [(None, 2), ("maxPerHour 4 is reached", 1)])
def test_for_a_run_that_a_cap_keeps_the_cluster_is_read_again_after_minutes_alone(
    monkeypatch: pytest.MonkeyPatch, obstacle: str | None, reads: int
) -> None:
    clock, started = [0.0], list[str]()
    monkeypatch.setattr(room_finder.time, "monotonic", lambda: clock[0])
    pages = AnnouncingNodes.pages

    def counted(self: AnnouncingNodes, resource: Resource, *rest: Any, **named: Any) -> AsyncIterator[Any]:
        started.append(resource.plural)
        return pages(self, resource, *rest, **named)

    monkeypatch.setattr(AnnouncingNodes, "pages", counted)

    async def scenario() -> None:
        one, _ = await two_runs()
        assert await one.may_move()
        entry = one.status.recovery.maintenance["a"].model_copy(update={"not_avoided": obstacle})
        one.status.set(recovery=RecoveryStatus(maintenance={"a": entry}))
        clock[0] += 100
        await one.room()
        assert started.count("nodes") == reads
        clock[0] += 300
        await one.room()
        assert started.count("nodes") == reads + 1

    asyncio.run(scenario())


def test_a_run_that_a_cap_has_kept_does_not_move_on_room_that_was_found_minutes_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(room_finder.time, "monotonic", lambda: clock[0])

    async def scenario() -> None:
        one, _ = await two_runs()
        entry = one.status.recovery.maintenance["a"].model_copy(update={"not_avoided": "maxPerHour"})
        one.status.set(recovery=RecoveryStatus(maintenance={"a": entry}))
        assert await one.may_move()
        clock[0] += room_finder.FRESH
        assert await one.may_move(), "it is not looked for again meanwhile"
        assert not one.move()
        assert await one.may_move()
        assert one.move()

    asyncio.run(scenario())


def test_a_run_does_not_grow_into_the_place_of_one_that_moves() -> None:
    async def scenario() -> None:
        one, two = await two_runs()
        grown = ShrunkRun("two", "b", two.finder)
        assert await grown.larger() == 16
        assert await one.may_move()
        assert one.move()
        assert await grown.larger() is None

    asyncio.run(scenario())


def test_nodes_that_are_tainted_for_their_maintenance_count_for_the_share_that_may_be_avoided() -> None:
    async def scenario() -> None:
        one, _ = await two_runs()
        one.status.set_recovery(nodes_avoided=["b"])
        room = await one.room()
        assert room is not None
        assert room.pool == 3
        one.finder.forget(one.status.key)
        one.snapshot = replace(one.snapshot, nodes_gone=frozenset({"b"}))
        room = await one.room()
        assert room is not None
        assert room.pool == 2, "but for one that no longer exists"

    asyncio.run(scenario())
