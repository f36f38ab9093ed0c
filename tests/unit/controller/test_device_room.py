"""A run that claims devices moves only once it is known which are free, also where a node announces it."""

from typing import Any

from megatron_operator.controller.capacity_finder import CapacityFinder
from megatron_operator.controller.node_watch import NodeWatch

from tests.unit.controller.test_device_watch import EVERYTHING, Api, Watching, claim, slice_of
from tests.unit.controller.test_growing_runs import AnyCount
from tests.unit.controller.test_moving_runs import AnnouncingNodes, LeavingRun


async def leaving_run(watching: Watching) -> LeavingRun:
    """A run on node a, which announces maintenance; node c has room for its pod, as far as resources go."""
    cluster: Any = AnnouncingNodes()
    planning: Any = AnyCount()
    watch = NodeWatch(cluster, lambda _run: None)
    await watch.refresh()
    run = LeavingRun(
        "one", "a", CapacityFinder(cluster, planning, watch, devices=watching.reader, allowed=True)
    )
    run.snapshot.pods[0]["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimName": "gpus"}]
    return run


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
