"""Runs that could grow into the same nodes are given them one after the other."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.labels import LABEL_RECIPE, LABEL_ROLE
from megatron_operator.api.platform import Maintenance
from megatron_operator.api.recovery_status import ElasticStatus
from megatron_operator.api.status import CheckpointStatus
from megatron_operator.api.times import timestamp
from megatron_operator.controller.api_resources import NODES, Resource
from megatron_operator.controller.capacity_finder import CapacityFinder
from megatron_operator.controller.node_watch import NodeWatch
from megatron_operator.lifecycle.checkpoint_compatibility import NEXT_CHECKPOINT, RESHARDABLE
from megatron_operator.lifecycle.observation import Elastic, Limits
from megatron_operator.lifecycle.snapshot import RunSnapshot
from megatron_operator.lifecycle.status_builder import StatusBuilder

NOW = 1_800_000_000.0
GPU = "nvidia.com/gpu"
LIMITS = Limits(max_restarts=3, rendezvous_timeout=60, elastic=Elastic(8, 60, 60))
SPEC = {"containers": [{"resources": {"limits": {GPU: "8"}}}]}


def pod(run: str, on: str) -> dict[str, Any]:
    labels = {LABEL_RECIPE: run, LABEL_ROLE: "trainer"}
    return {
        "metadata": {"uid": f"pod-{run}", "namespace": "research", "labels": labels},
        "spec": {"nodeName": on, **SPEC},
        "status": {"phase": "Running"},
    }


class ThreeNodes:
    """An API server: each of two runs has a node, and the third is free."""

    async def pages(
        self, resource: Resource, _namespace: str | None, **_selectors: str
    ) -> AsyncIterator[list[Any]]:
        ready = {
            "allocatable": {GPU: "8", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        nodes = [{"metadata": {"name": name}, "status": ready} for name in ("a", "b", "c")]
        yield nodes if resource is NODES else [pod("one", "a"), pod("two", "b")]


class AnyCount:
    revision = 0

    async def can_continue_on(self, _status: StatusBuilder, _count: int) -> bool:
        return True


class ShrunkRun:
    """A run of 16 accelerators that has 8."""

    def __init__(self, name: str, on: str, finder: CapacityFinder) -> None:
        self.finder = finder
        metadata = {"name": name, "namespace": "research", "uid": name, "generation": 1}
        accelerator = {"type": "h100-sxm", "count": 16}
        spec = {"recipe": "llama3-8b", "accelerator": accelerator, "data": {"mockData": True}}
        self.status = StatusBuilder.of({"metadata": metadata, "spec": spec}, NOW)
        self.status.set_recovery(elastic=ElasticStatus(count=8, since=timestamp(NOW), reason="node lost"))
        template = {"spec": SPEC}
        job: dict[str, Any] = {
            "kind": "PyTorchJob",
            "spec": {
                "nprocPerNode": "8",
                "pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": template}},
            },
        }
        self.snapshot = RunSnapshot(NOW, job, (pod(name, on),))

    async def larger(self) -> int | None:
        """The count that the run could grow to."""
        found = (await self.finder.find(self.status, self.snapshot, LIMITS, Maintenance())).elastic
        return None if found is None else found.larger

    def grow(self) -> bool:
        return self.finder.grow(self.status, self.snapshot, 16)


def two_runs() -> tuple[ShrunkRun, ShrunkRun]:
    api: Any = ThreeNodes()
    planning: Any = AnyCount()
    finder = CapacityFinder(api, planning, allowed=True)
    return ShrunkRun("one", "a", finder), ShrunkRun("two", "b", finder)


def test_a_node_into_which_a_run_grows_is_not_free_for_another() -> None:
    async def scenario() -> None:
        one, two = two_runs()
        assert await one.larger() == 16
        assert one.grow()
        assert await two.larger() is None
        one.finder.forget(one.status.key)
        assert await two.larger() == 16

    asyncio.run(scenario())


def test_of_two_runs_that_saw_the_same_node_free_the_second_looks_again() -> None:
    async def scenario() -> None:
        one, two = two_runs()
        assert (await one.larger(), await two.larger()) == (16, 16)
        assert (one.grow(), two.grow()) == (True, False)
        assert await two.larger() is None

    asyncio.run(scenario())


class AnnouncingNodes(ThreeNodes):
    """Labels of the nodes have the starts of their maintenance."""

    def __init__(self, starts: dict[str, float]) -> None:
        self.starts = starts

    async def versioned_pages(
        self, _resource: Resource, _namespace: None
    ) -> AsyncIterator[tuple[str, list[Any]]]:
        [key] = Maintenance().start_times
        labels = {name: {key: str(int(self.starts[name]))} if name in self.starts else {} for name in "abc"}
        yield "1", [{"metadata": {"name": name, "labels": labels[name]}} for name in "abc"]


@pytest.mark.parametrize(
    ("starts", "larger"),
    [
        ({"c": NOW + 600}, None),
        ({"c": NOW + 7 * 86_400}, 16),
        ({"a": NOW + 7200}, 16),
        ({"b": NOW + 600}, 16),
    ],
    ids=["the-free-node", "the-free-node-in-a-week", "its-own", "that-of-another-run"],
)
async def test_a_run_does_not_grow_onto_a_node_whose_maintenance_is_near(
    starts: dict[str, float], larger: int | None
) -> None:
    api: Any = AnnouncingNodes(starts)
    watch = NodeWatch(api, lambda _run: None)
    await watch.refresh()
    planning: Any = AnyCount()
    run = ShrunkRun("one", "a", CapacityFinder(api, planning, watch, allowed=True))
    assert await run.larger() == larger


async def test_a_run_that_waits_counts_the_node_that_its_pod_may_get() -> None:
    api: Any = AnnouncingNodes({"c": NOW + 600})
    watch = NodeWatch(api, lambda _run: None)
    await watch.refresh()
    planning: Any = AnyCount()
    run = ShrunkRun("one", "a", CapacityFinder(api, planning, watch, allowed=True))
    run.status.set_recovery(elastic=None, waiting_since=timestamp(NOW))
    found = (await run.finder.find(run.status, run.snapshot, LIMITS, Maintenance())).elastic
    assert found is not None
    assert found.fits == 16


class Judging(AnyCount):
    """Another count is possible with a checkpoint that can be resharded, unless the platform is refused."""

    refused = False

    async def can_continue_on(self, status: StatusBuilder, _count: int) -> bool:
        if self.refused:
            error = FieldError("platform.recoveryPriorityClassName", "does not exist", "create it")
            raise InvalidRecipeError([error])
        return status.checkpoint.contract == {RESHARDABLE: "true"}


def judged_run(planning: Judging) -> ShrunkRun:
    api: Any = ThreeNodes()
    finder = CapacityFinder(api, cast(Any, planning), allowed=True)
    return ShrunkRun("one", "a", finder)


async def test_a_count_that_checkpoints_did_not_allow_is_judged_again_after_a_save() -> None:
    run = judged_run(Judging())
    run.status.set(checkpoint=CheckpointStatus(iteration=1, contract={RESHARDABLE: NEXT_CHECKPOINT}))
    assert await run.larger() is None
    run.status.set(checkpoint=CheckpointStatus(iteration=2, contract={RESHARDABLE: "true"}))
    assert await run.larger() == 16


async def test_while_the_platform_is_refused_nodes_are_judged_all_the_same() -> None:
    planning = Judging()
    planning.refused = True
    run = judged_run(planning)
    run.status.set_recovery(nodes_avoided=["c"], waiting_since=timestamp(NOW))
    found = await run.finder.find(run.status, run.snapshot, LIMITS, Maintenance())
    assert found.elastic is None
    assert found.releasable_nodes == {"c"}
