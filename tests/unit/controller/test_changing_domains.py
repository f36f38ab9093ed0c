"""Two runs whose racks each lost a node, and another rack with room for one of them: only one moves there."""

import asyncio
from typing import Any

import pytest
from megatron_operator.api.platform import Maintenance
from megatron_operator.api.times import timestamp
from megatron_operator.controller import cluster_reader
from megatron_operator.controller.capacity_finder import CapacityFinder
from megatron_operator.lifecycle.snapshot import RunSnapshot

from tests.unit.controller.test_growing_runs import LIMITS, NOW, SPEC, ShrunkRun, pod
from tests.unit.controller.test_required_topology import SPEC_IN_RACK, Racks, finder, job


def named_pod(run: str, uid: str, on: str | None) -> dict[str, Any]:
    """A pod that must share the rack of its run; it waits where it is on no node."""
    found = pod(run, on or "")
    found["metadata"] |= {"uid": uid, "creationTimestamp": timestamp(NOW)}
    found["spec"] = SPEC_IN_RACK | ({} if on is None else {"nodeName": on})
    found["status"] = {"phase": "Pending" if on is None else "Running"}
    return found


class RunInRack(ShrunkRun):
    """A run of two pods, of which one is on this node and the other waits."""

    def __init__(self, name: str, on: str, finder: CapacityFinder, cluster: Racks) -> None:
        super().__init__(name, on, finder)
        self.name, self.cluster = name, cluster
        self.status.set_recovery(elastic=None, waiting_since=timestamp(NOW))
        self.snapshot = RunSnapshot(NOW, job(2), ())
        self.has(on, None)

    def has(self, *nodes: str | None, job: str = "former") -> None:
        """The run has a pod of this job on each of these nodes; None is one that waits."""
        pods = tuple(named_pod(self.name, f"{self.name}-{job}-{rank}", on) for rank, on in enumerate(nodes))
        self.snapshot = RunSnapshot(NOW, self.snapshot.job, pods)
        others = [each for each in self.cluster.waiting if each["metadata"]["uid"].split("-")[0] != self.name]
        self.cluster.waiting = [*others, *pods]

    async def has_room(self) -> bool:
        found = await self.finder.find(self.status, self.snapshot, LIMITS, Maintenance())
        return found.in_another_domain

    def move(self) -> bool:
        return self.finder.grow(self.status, self.snapshot, self.snapshot.accelerators)


def two_runs(racks: dict[str, str | None]) -> tuple[RunInRack, RunInRack]:
    cluster = Racks(racks)
    shared = finder(cluster)
    return RunInRack("one", "a", shared, cluster), RunInRack("two", "b", shared, cluster)


ONE_FREE: dict[str, str | None] = {"a": "r1", "b": "r3", "c": "r2", "d": "r2"}


@pytest.fixture(autouse=True)
def _no_cached_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_reader, "FRESH", 0.0)


def test_the_rack_that_one_run_moves_to_has_no_room_for_another_until_its_pods_are_bound() -> None:
    async def scenario() -> None:
        one, two = two_runs(ONE_FREE)
        assert await one.has_room()
        assert one.move()
        assert not await two.has_room(), "the job of the first is being deleted"
        one.has("a")
        assert not await two.has_room(), "one of its pods has ended"
        one.has()
        assert not await two.has_room(), "its job was deleted, and the new one has no pods yet"
        one.has(None, job="new")
        assert not await two.has_room(), "one of its new pods was created"
        one.has(None, None, job="new")
        assert not await two.has_room(), "both wait"
        one.has("c", None, job="new")
        assert not await two.has_room(), "one of them is bound"
        one.has("c", "d", job="new")
        assert not await two.has_room(), "both are bound"

    asyncio.run(scenario())


def test_of_two_runs_that_saw_the_same_rack_free_one_moves() -> None:
    async def scenario() -> None:
        one, two = two_runs(ONE_FREE)
        assert (await one.has_room(), await two.has_room()) == (True, True)
        assert (one.move(), two.move()) == (True, False)
        one.has()
        assert not await two.has_room()

    asyncio.run(scenario())


def test_both_runs_move_where_the_rack_has_room_for_both() -> None:
    async def scenario() -> None:
        one, two = two_runs({**ONE_FREE, "e": "r2", "f": "r2"})
        assert await one.has_room()
        assert one.move()
        assert await two.has_room()
        assert two.move()

    asyncio.run(scenario())


def test_a_run_that_grows_into_another_rack_takes_the_place_of_each_of_its_pods_there() -> None:
    async def scenario() -> None:
        cluster = Racks({"a": "r1", "b": "r3", "c": "r2", "d": "r2"}, bound="a")
        shared = finder(cluster)
        one, two = ShrunkRun("one", "a", shared), ShrunkRun("two", "b", shared)
        one.snapshot = RunSnapshot(NOW, job(1), (pod("one", "a"),))
        assert await one.larger() == 16
        assert one.grow()
        cluster.waiting = [pod("two", "b")]
        two.snapshot = RunSnapshot(NOW, job(1, SPEC), (pod("two", "b"),))
        assert await two.larger() is None

    asyncio.run(scenario())
