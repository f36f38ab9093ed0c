"""Taints of devices that the real scheduler has allocated, and from which the real controller evicts pods."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from testkit.api_server import Object
from testkit.run_state import RunState
from tests.control_plane.conftest import PLATFORM, PlatformWith
from tests.control_plane.devices import RESOURCE, TEMPLATE, Devices, device
from tests.control_plane.nodes import Pool
from tests.control_plane.world import World

XID = "gpu.example.com/xid"
CLAIMED: Object = {
    "resourceName": None,
    "podTemplate": {"resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": TEMPLATE}]},
}
"""Part of a profile whose pods claim a device themselves."""
BACKED: Object = {"resourceName": RESOURCE}
"""One whose pods request an extended resource, for which the scheduler creates a claim."""
SHARE: Object = {"cpu": "2", "memory": "8Gi"}
"""What a pod has of a node that has room for one."""
WithDevices = Callable[[Object, int], AbstractContextManager[Devices]]


@pytest.fixture
def with_devices(
    world: World, pool: Callable[[int], Pool], platform_with: PlatformWith
) -> Iterator[WithDevices]:
    """Runs the operator with a profile whose pods have a node, and a device of it, to themselves."""
    made: list[Devices] = []

    @contextmanager
    def running(profile: Object, nodes: int) -> Iterator[Devices]:
        devices = Devices(world.api, pool(nodes))
        made.append(devices)
        devices.claim_template(world.namespace)
        simulated = PLATFORM["accelerators"]["simulated"] | {"perNode": 1, "resources": SHARE} | profile
        with platform_with({"accelerators": {"simulated": simulated}}):
            yield devices

    yield running
    for each in made:
        each.delete()


def begin(world: World, devices: Devices) -> RunState:
    """A run that trains on two devices."""
    world.apply(
        "run",
        accelerator={"count": 2},
        parallelism={"tensorModelParallelSize": 1},
        scheduling={"nodeSelector": devices.pool.selector},
    )
    return world.train("run", 60, checkpoint=50)


def placed_on(state: RunState) -> set[str | None]:
    """Nodes of the run's pods; None for one without a node."""
    return {pod["spec"].get("nodeName") for pod in state.pods.values()}


def taint(effect: str) -> Object:
    return {"key": XID, "value": "79", "effect": effect}


@pytest.mark.parametrize("profile", [CLAIMED, BACKED], ids=["claim", "extended-resource"])
def test_a_run_moves_off_a_device_that_its_driver_taints_and_the_node_is_used_again_later(
    world: World, with_devices: WithDevices, profile: Object
) -> None:
    with with_devices(profile, 3) as devices:
        state = begin(world, devices)
        leaves, worker = state.node_of("worker-0"), state.uid_of("worker-0")
        others = set(devices.pool.nodes) - {leaves}
        devices.publish(leaves, taint("NoSchedule"))
        world.wait_for("run", pods=2, without=[worker], where=lambda state: placed_on(state) == others)
        state = world.train(
            "run", 61, checkpoint=60, generation=2, resumedFrom=60, recovery={"nodesAvoided": [leaves]}
        )
        [incident] = state.recovery["history"]
        sign = f"{device(leaves)} with taint {XID}=79:NoSchedule"
        assert (incident["kind"], incident["node"]) == ("maintenance", leaves)
        assert incident["cause"] == f"maintenance of {leaves} ({sign})"
        assert state.recovery["maintenance"][leaves]["sign"] == sign
        assert state.recovery.get("restarts", 0) == 0
        devices.publish(leaves)
        state = world.wait_for("run", where=lambda state: not state.recovery.get("nodesAvoided"))
        assert placed_on(state) == others, "nothing moves back"


@pytest.mark.parametrize("profile", [CLAIMED, BACKED], ids=["claim", "extended-resource"])
def test_a_run_trains_on_where_no_other_device_is_free(
    world: World, with_devices: WithDevices, profile: Object
) -> None:
    """The third node has room for a pod, and its device is tainted too."""
    with with_devices(profile, 3) as devices:
        state = begin(world, devices)
        leaves, before = state.node_of("worker-0"), state.pod_uids
        [spare] = set(devices.pool.nodes) - {leaves, state.node_of("master-0")}
        devices.taint_by_rule(f"{spare}-rule", spare, taint("NoSchedule"))
        devices.taint_by_rule(f"{leaves}-rule", leaves, taint("NoSchedule"))
        world.wait_for_events("NodeNotAvoided", contains="the other nodes have no room for all 2 pods now")
        state = world.wait_for("run", status={"phase": "Training"})
        assert state.pod_uids == before
        sign = f"{device(leaves)} with taint {XID}=79:NoSchedule of DeviceTaintRule {leaves}-rule"
        assert state.recovery["maintenance"][leaves]["sign"] == sign
        assert not state.recovery.get("history")


def test_a_pod_that_is_evicted_for_its_device_costs_no_restart_and_its_incident_names_the_taint(
    world: World, with_devices: WithDevices
) -> None:
    with with_devices(CLAIMED, 3) as devices:
        state = begin(world, devices)
        leaves, worker = state.node_of("worker-0"), state.uid_of("worker-0")
        devices.taint_by_rule(f"{leaves}-rule", leaves, taint("NoExecute"))
        others = set(devices.pool.nodes) - {leaves}
        world.wait_for("run", pods=2, without=[worker], where=lambda state: placed_on(state) == others)
        state = world.train(
            "run", 61, checkpoint=60, generation=2, resumedFrom=60, conditions={"Recovering": "Recovered"}
        )
        [incident] = state.recovery["history"]
        named = f"{device(leaves)} with taint {XID}=79:NoExecute of DeviceTaintRule {leaves}-rule"
        assert named in incident["cause"], incident
        assert state.recovery.get("restartsSinceCheckpoint", 0) == 0
