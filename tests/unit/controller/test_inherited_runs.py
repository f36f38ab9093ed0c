"""A run that was on its way to other places when the operator restarted keeps them."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from megatron_operator.api.conditions import Phase
from megatron_operator.api.labels import LABEL_RECIPE
from megatron_operator.api.platform import Maintenance
from megatron_operator.api.recovery_status import RecoveryStatus
from megatron_operator.api.status import JobStatus
from megatron_operator.api.times import timestamp
from megatron_operator.controller import cluster_reader
from megatron_operator.controller.capacity_finder import CapacityFinder
from megatron_operator.controller.node_watch import NodeWatch
from megatron_operator.controller.object_cache import Caches, ObjectCache
from megatron_operator.lifecycle.growths import LONGEST_GROWTH
from megatron_operator.lifecycle.incidents import recovered, resized
from megatron_operator.lifecycle.maintenance import moved
from megatron_operator.lifecycle.observation import MaintenanceMove
from megatron_operator.lifecycle.snapshot import RunSnapshot
from megatron_operator.lifecycle.status_builder import StatusBuilder

from tests.unit.controller.test_changing_domains import named_pod
from tests.unit.controller.test_growing_runs import LIMITS, NOW, AnyCount, ShrunkRun
from tests.unit.controller.test_moving_runs import AnnouncingNodes, LeavingRun
from tests.unit.controller.test_required_topology import Racks, job

GROWN = resized(RecoveryStatus(), 16, 16, "accelerators are free", NOW, iteration=5)
CHANGED = RecoveryStatus(outgoing_job="job-1")
LEAVING = MaintenanceMove({"x": "node taint y"}, {"x": "node taint y"})
MOVED = moved(RecoveryStatus(), LEAVING, None, NOW, iteration=5)


def recipe(
    recovery: RecoveryStatus,
    version: int,
    phase: Phase = Phase.RECOVERING,
    name: str = "two",
    job: str | None = None,
    **spec: Any,
) -> Any:
    """A recipe whose status names this job."""
    metadata = {"name": name, "namespace": "research", "uid": name, "generation": 1}
    body = {"metadata": metadata | {"resourceVersion": str(version)}, "spec": spec}
    status = StatusBuilder.of(body, NOW)
    status.set(phase=phase, recovery=recovery)
    if job is not None:
        status.set(job=JobStatus(name=name, uid=job, hash="x"))
    return body | {"status": status.patch()["status"]}


def job_of(run: str, uid: str = "job-2", pods: int = 2) -> Any:
    """The run's job, as its cache has it."""
    labels = {LABEL_RECIPE: run}
    metadata = {"name": run, "namespace": "research", "uid": uid, "labels": labels, "resourceVersion": "1"}
    return job(pods) | {"metadata": metadata}


def pod_of(run: str, name: str, on: str | None = None, job: str = "job-2") -> Any:
    """A pod of this job on this node; None is one that waits."""
    found = named_pod(run, f"{run}-{name}", on)
    owner = {"kind": "PyTorchJob", "uid": job}
    found["metadata"] |= {"name": f"{run}-{name}", "ownerReferences": [owner], "resourceVersion": "1"}
    return found


class Restarted:
    """An operator that has just started, and what the recipe of another run had then."""

    def __init__(self, other: Any) -> None:
        self.caches = Caches()
        self.recipes = self.caches.recipes
        self.recipes.put(other)
        api: Any = AnnouncingNodes()
        planning: Any = AnyCount()
        self.watch = NodeWatch(api, lambda _run: None)
        self.finder = CapacityFinder(api, planning, self.watch, self.caches, allowed=True)
        self.run = ShrunkRun("one", "a", self.finder)

    async def grows(self) -> bool:
        """Whether the run, for which there is room, is given it."""
        assert await self.run.larger() == 16
        return self.run.grow()

    def has(self, job: Any, *pods: Any) -> None:
        """The other run has this job and these pods."""
        self.caches.jobs["PyTorchJob"].put(job)
        for each in pods:
            self.caches.pods.put(each)


@pytest.mark.parametrize(
    "recovery",
    [GROWN, CHANGED, MOVED],
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


DELETED = {"deletionTimestamp": timestamp(NOW)}
MASTER, WORKER = pod_of("two", "master-0", "b"), pod_of("two", "worker-0")
ON_AVOIDED_NODE = pod_of("two", "worker-0", "x")


@pytest.mark.parametrize("recovery", [GROWN, MOVED], ids=["resized", "moved"])
def test_a_run_whose_new_pods_wait_for_a_node_keeps_nobody_waiting(recovery: RecoveryStatus) -> None:
    operator = Restarted(recipe(recovery, 1, job="job-2"))
    operator.has(job_of("two"), MASTER, WORKER)
    assert asyncio.run(operator.grows())


@pytest.mark.parametrize(
    ("recovery", "pods"),
    [
        (GROWN, (MASTER,)),
        (GROWN, (MASTER, pod_of("two", "worker-0", job="job-1"))),
        (GROWN, (MASTER, WORKER | {"status": {"phase": "Failed"}})),
        (MOVED, (MASTER, WORKER | {"metadata": WORKER["metadata"] | DELETED})),
        (MOVED, (MASTER, ON_AVOIDED_NODE)),
        (GROWN.model_copy(update={"outgoing_job": "job-2"}), (MASTER, WORKER)),
    ],
    ids=["not-created", "of-the-earlier-job", "ended", "being-deleted", "on-an-avoided-node", "outgoing"],
)
def test_a_run_is_waited_for_until_each_pod_of_its_new_job_exists(
    recovery: RecoveryStatus, pods: tuple[Any, ...]
) -> None:
    async def scenario() -> None:
        operator = Restarted(recipe(recovery, 1, job="job-2"))
        operator.has(job_of("two"), *pods)
        assert not await operator.grows()
        assert not await operator.grows()
        operator.recipes.put(recipe(recovery.model_copy(update={"outgoing_job": None}), 2, job="job-2"))
        for each in MASTER, WORKER:
            operator.caches.pods.put(each | {"metadata": each["metadata"] | {"resourceVersion": "2"}})
        assert not await operator.grows(), "its pods may be on what was found free"
        assert await operator.grows()

    asyncio.run(scenario())


DELETED_JOB = job_of("two") | {"metadata": job_of("two")["metadata"] | DELETED}


@pytest.mark.parametrize("job", [DELETED_JOB, job_of("two", "job-3")], ids=["deleted", "not-in-the-status"])
def test_a_run_is_waited_for_until_its_status_names_a_job_that_stays(job: Any) -> None:
    operator = Restarted(recipe(GROWN, 1, job="job-2"))
    uid = job["metadata"]["uid"]
    operator.has(job, pod_of("two", "master-0", "b", uid), pod_of("two", "worker-0", job=uid))
    assert not asyncio.run(operator.grows())


def test_a_node_that_a_run_took_since_the_nodes_were_listed_is_not_free() -> None:
    async def scenario() -> None:
        cluster: Any = Racks({"a": None, "b": None, "c": None}, bound="a")
        planning: Any = AnyCount()
        caches = Caches()
        finder = CapacityFinder(cluster, planning, caches=caches, allowed=True)
        await finder.without_small_domains(ShrunkRun("new", "", finder).status.key, job(1))
        taken = pod_of("two", "master-0", "c")
        cluster.waiting = [taken, pod_of("three", "master-0", "b")]
        caches.recipes.put(recipe(GROWN, 1, job="job-2"))
        caches.jobs["PyTorchJob"].put(job_of("two", pods=1))
        caches.pods.put(taken)
        assert await ShrunkRun("one", "a", finder).larger() is None

    asyncio.run(scenario())


class WaitingRun(ShrunkRun):
    """A run of two pods in one rack, of which one is on this node and the other waits."""

    def __init__(self, name: str, on: str, finder: CapacityFinder) -> None:
        super().__init__(name, on, finder)
        self.status.set_recovery(elastic=None, waiting_since=timestamp(NOW))
        self.pods = pod_of(name, "master-0", on), pod_of(name, "worker-0")
        self.snapshot = RunSnapshot(NOW, job_of(name), self.pods)

    async def has_room(self) -> bool:
        found = await self.finder.find(self.status, self.snapshot, LIMITS, Maintenance())
        return found.in_another_domain

    def move(self) -> bool:
        return self.finder.grow(self.status, self.snapshot, self.snapshot.accelerators)


def test_of_two_runs_that_wait_for_the_same_domain_one_moves_at_once_after_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_reader, "FRESH", 0.0)

    async def scenario() -> None:
        cluster: Any = Racks({"a": "r1", "b": "r2", "c": "r3", "d": "r3"})
        planning: Any = AnyCount()
        caches = Caches()
        finder = CapacityFinder(cluster, planning, caches=caches, allowed=True)
        one, two = WaitingRun("one", "a", finder), WaitingRun("two", "b", finder)
        for run, name in ((one, "one"), (two, "two")):
            caches.recipes.put(recipe(GROWN, 1, name=name, job="job-2"))
            caches.jobs["PyTorchJob"].put(job_of(name))
            for each in run.pods:
                caches.pods.put(each)
                cluster.waiting.append(each)
        assert (await one.has_room(), one.move()) == (True, True)
        assert not await two.has_room()

    asyncio.run(scenario())
