"""A run that claims devices moves, grows and uses nodes again only where it is known that these are free."""

from typing import Any

import pytest
from megatron_operator.api.platform import Maintenance
from megatron_operator.api.times import timestamp
from megatron_operator.controller.capacity_finder import CapacityFinder
from megatron_operator.controller.node_watch import NodeWatch
from megatron_operator.lifecycle.observation import Capacity

from tests.unit.controller.test_device_watch import EVERYTHING, Api, Watching, claim, slice_of
from tests.unit.controller.test_growing_runs import LIMITS, NOW, AnyCount, ShrunkRun, ThreeNodes
from tests.unit.controller.test_moving_runs import AnnouncingNodes, LeavingRun

CLAIMS = [{"name": "gpus", "resourceClaimName": "gpus"}]


async def leaving_run(watching: Watching) -> LeavingRun:
    """A run on node a, which announces maintenance; node c has room for its pod, as far as resources go."""
    cluster: Any = AnnouncingNodes()
    planning: Any = AnyCount()
    watch = NodeWatch(cluster, lambda _run: None)
    await watch.refresh()
    run = LeavingRun(
        "one", "a", CapacityFinder(cluster, planning, watch, devices=watching.reader, allowed=True)
    )
    run.snapshot.pods[0]["spec"]["resourceClaims"] = CLAIMS
    return run


def elastic_run(watching: Watching) -> ShrunkRun:
    """A run on node a that lacks a pod; node c has room for it, as far as resources go."""
    cluster: Any = ThreeNodes()
    planning: Any = AnyCount()
    run = ShrunkRun("one", "a", CapacityFinder(cluster, planning, devices=watching.reader, allowed=True))
    run.snapshot.pods[0]["spec"]["resourceClaims"] = CLAIMS
    return run


async def capacity(run: ShrunkRun) -> Capacity:
    return await run.finder.find(run.status, run.snapshot, LIMITS, Maintenance())


async def test_nothing_is_decided_before_the_devices_are_known() -> None:
    api = Api(EVERYTHING, slice_of("a"), slice_of("c"))
    api.objects["resourceclaims"] = [claim("a", "gpu-0", "gpu-1")]
    watching = Watching(api)
    run = await leaving_run(watching)
    assert await run.room() is None
    await watching.discover()
    assert await run.may_move()


async def test_a_run_stays_where_no_other_node_has_its_devices() -> None:
    api = Api(EVERYTHING, slice_of("a"), slice_of("c"))
    api.objects["resourceclaims"] = [claim("a", "gpu-0", "gpu-1"), claim("c", "gpu-0", name="of-another")]
    run = await leaving_run(await Watching(api).discover())
    room = await run.room()
    assert room is not None
    assert room.pods == 0


@pytest.mark.parametrize(("held", "larger"), [(("gpu-0",), None), ((), 16)], ids=["held", "free"])
async def test_a_run_grows_only_into_nodes_with_free_devices_such_as_its_pods_claim(
    held: tuple[str, ...], larger: int | None
) -> None:
    api = Api(EVERYTHING, slice_of("a"), slice_of("c"))
    api.objects["resourceclaims"] = [claim("a", "gpu-0", "gpu-1"), claim("c", *held, name="of-another")]
    assert await elastic_run(await Watching(api).discover()).larger() == larger


async def test_a_run_that_waits_counts_no_devices_that_others_hold() -> None:
    api = Api(EVERYTHING, slice_of("a"), slice_of("c"))
    api.objects["resourceclaims"] = [claim("a", "gpu-0", "gpu-1"), claim("c", "gpu-0", name="of-another")]
    run = elastic_run(await Watching(api).discover())
    run.status.set_recovery(elastic=None, waiting_since=timestamp(NOW), nodes_avoided=["c"])
    found = await capacity(run)
    assert found.elastic is not None
    assert (found.elastic.fits, found.releasable_nodes) == (8, frozenset())
    api.objects["resourceclaims"].pop()
    run = elastic_run(await Watching(api).discover())
    run.status.set_recovery(elastic=None, waiting_since=timestamp(NOW), nodes_avoided=["c"])
    assert (await capacity(run)).releasable_nodes == {"c"}


async def test_a_run_keeps_its_size_before_the_devices_are_known() -> None:
    run = elastic_run(Watching(Api(EVERYTHING, slice_of("a"))))
    assert await capacity(run) == Capacity()
    run.status.set_recovery(waiting_since=timestamp(NOW), nodes_avoided=["c"])
    found = await capacity(run)
    assert (found.elastic, found.releasable_nodes) == (None, frozenset({"c"}))
