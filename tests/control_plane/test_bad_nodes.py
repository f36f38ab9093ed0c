"""A node whose hardware fails is avoided as long as there is another one."""

import time
from collections.abc import Callable, Iterator

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_contract.hardware import Evidence
from megatron_contract.termination import TerminationMessage
from megatron_operator.api.labels import FIELD_MANAGER
from megatron_operator.api.recovery_status import NodeEvidence
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.cordoning import cordon_patch, cordoned_at, is_cordoned, is_own_cordon

from testkit.api_server import Object
from testkit.operator_process import OPERATOR_NAMESPACE
from testkit.run_state import RunState
from testkit.waiting import wait_until
from tests.control_plane.conftest import PLATFORM
from tests.control_plane.nodes import Pool
from tests.control_plane.test_operator_restart import killed_after_every_write
from tests.control_plane.world import World

ECC = "rank 3: CUDA error: uncorrectable ECC error encountered"


def fail_worker(
    world: World, old: str, restarts: int, evidence: Evidence | None = Evidence.DEVICE_MEMORY
) -> RunState:
    """Let the container of the worker with uid `old` fail; the state once it is replaced and counted."""
    message = TerminationMessage.of(ExitCode.WORKER_DIED, ECC if evidence else "a bug", evidence=evidence)
    world.report("run", phase="rendezvous", iteration=60, checkpointIteration=50)
    world.terminate("run-worker-0", 138, message.dumps())

    def replaced_and_counted(state: RunState) -> bool:
        return "worker-0" in state.pods and state.recovery.get("restarts", 0) >= restarts

    return world.wait_for("run", without=[old], where=replaced_and_counted)


def avoided_nodes(state: RunState) -> list[str]:
    """Nodes that the affinity of the job's workers excludes."""
    affinity = state.pod_specs[-1]["affinity"]["nodeAffinity"]
    [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return [name for e in term["matchExpressions"] if e["operator"] == "NotIn" for name in e["values"]]


def begin(world: World, on: Pool, **recovery: object) -> RunState:
    """A run that trains on the pool."""
    world.apply("run", scheduling={"nodeSelector": on.selector}, recovery=recovery)
    return world.train("run", 60, checkpoint=50)


def moved(world: World, before: RunState, bad: str) -> RunState:
    """The state once the worker runs elsewhere than on `bad`; in a job that was created again if need be.

    In such a job the pods may have changed places.
    """

    def elsewhere(state: RunState) -> bool:
        settled = world.backend.changes_templates or state.job_uid != before.job_uid
        return settled and state.pods["worker-0"]["spec"].get("nodeName") not in (None, bad)

    return world.wait_for("run", pods=2, where=elsewhere)


def test_a_node_is_avoided_at_its_first_hardware_failure_and_never_for_an_application_error(
    world: World, pool: Callable[[int], Pool]
) -> None:
    nodes = pool(3)
    state = begin(world, nodes)
    bad = state.node_of("worker-0")
    [spare] = set(nodes.nodes) - {bad, state.node_of("master-0")}
    nodes.cordon(spare)
    fail_worker(world, state.uid_of("worker-0"), 1, evidence=None)
    state = world.train("run", 52, generation=2, recovery={"restarts": 1})
    assert "nodeFailures" not in state.recovery
    assert state.job is not None
    nodes.uncordon(spare)
    before = state.job["metadata"]
    fail_worker(world, state.uid_of("worker-0"), 2)
    moved(world, state, bad)
    state = world.train(
        "run", 53, checkpoint=50, generation=3, resumedFrom=50, recovery={"nodesAvoided": [bad]}
    )
    assert state.recovery["restarts"] == 2, "moving the pod is not counted as another failure"
    assert state.job is not None
    assert avoided_nodes(state) == [bad]
    if world.backend.changes_templates:
        assert state.job_uid == before["uid"]
        assert state.job["metadata"]["annotations"] == before["annotations"], "it is still the same job"
    else:
        assert state.job_uid != before["uid"], "the templates of a job stay as they are"
    assert state.recovery["nodeEvidence"][bad]["evidence"] == "DeviceMemory"
    world.wait_for_events("NodeAvoided", contains=ECC)


def test_the_next_operator_completes_the_avoidance(world: World, pool: Callable[[int], Pool]) -> None:
    state = begin(world, pool(3), nodes={"avoidAfter": 1})
    bad = state.node_of("worker-0")
    assert state.node_of("master-0") != bad

    def recorded() -> bool:
        recipe = world.api.get("MegatronRecipe", world.namespace, "run")
        return bad in recipe["status"].get("recovery", {}).get("nodeEvidence", {})

    # The evidence is in the failed pod alone, which is replaced at once.
    with killed_after_every_write(world, once=recorded) as kills:
        fail_worker(world, state.uid_of("worker-0"), 1)
        world.wait_for("run", where=lambda state: state.job is not None and avoided_nodes(state) == [bad])
    assert kills[0] >= 2
    recovery = world.wait_for("run", status={"recovery": {"nodesAvoided": [bad]}}).recovery
    assert recovery["restarts"] == 1
    assert recovery["lastCause"].endswith("(exit code 138)")  # seen in the pod, or from Events only


def test_a_bad_node_is_used_again_when_there_is_no_other(world: World, pool: Callable[[int], Pool]) -> None:
    nodes = pool(3)
    state = begin(world, nodes)
    bad = state.node_of("worker-0")
    fail_worker(world, state.uid_of("worker-0"), 1)
    moved(world, state, bad)
    state = world.train("run", 52, checkpoint=50, generation=2, resumedFrom=50)
    assert state.recovery["nodesAvoided"] == [bad]
    nodes.cordon(state.node_of("worker-0"))
    fail_worker(world, state.uid_of("worker-0"), 2, evidence=None)
    state = world.wait_for("run", pods=2, where=lambda state: not state.recovery.get("nodesAvoided"))
    assert bad in {state.node_of("master-0"), state.node_of("worker-0")}
    assert state.recovery.get("nodeFailures", {}) == {}
    world.wait_for_events("NodeReleased", contains="have room for 1 of 2 pods")


def test_a_node_that_the_run_needs_is_not_avoided(world: World, pool: Callable[[int], Pool]) -> None:
    state = begin(world, pool(2))
    bad = state.node_of("worker-0")
    fail_worker(world, state.uid_of("worker-0"), 1)
    state = world.train("run", 52, checkpoint=50, generation=2, resumedFrom=50)
    assert state.node_of("worker-0") == bad
    assert state.recovery["nodeEvidence"][bad]["evidence"] == "DeviceMemory"
    assert not state.recovery.get("nodesAvoided")


def set_fault(world: World, node: str, status: str) -> None:
    """Set a condition as a monitor of the node's hardware does."""
    now = "2026-01-01T00:00:00Z"
    fault = {"type": "GPUXIDErrors", "status": status, "lastTransitionTime": now, "lastHeartbeatTime": now}
    known = world.api.get("Node", None, node)["status"].get("conditions") or []
    conditions = [*(each for each in known if each["type"] != fault["type"]), fault]
    world.api.patch("Node", None, node, {"status": {"conditions": conditions}}, "status")


def test_a_node_whose_condition_shows_failed_hardware_is_avoided(
    world: World, pool: Callable[[int], Pool]
) -> None:
    state = begin(world, pool(3))
    bad = state.node_of("worker-0")
    set_fault(world, bad, "True")
    fail_worker(world, state.uid_of("worker-0"), 1, evidence=None)
    state = world.wait_for("run", pods=2, status={"recovery": {"nodesAvoided": [bad]}})
    assert state.recovery["nodeEvidence"][bad]["cause"] == "node condition GPUXIDErrors=True"


@pytest.fixture
def cordoning(install: Callable[[str, Object], str], installed: str) -> Iterator[None]:
    """The platform cordons bad nodes."""
    assert installed
    install(OPERATOR_NAMESPACE, {"platform": PLATFORM | {"badNodes": {"cordon": True}}})
    yield
    install(OPERATOR_NAMESPACE, {"platform": PLATFORM})


@pytest.mark.usefixtures("cordoning")
def test_a_bad_node_is_cordoned_where_the_platform_requests_it_until_its_condition_is_gone(
    world: World, pool: Callable[[int], Pool]
) -> None:
    state = begin(world, pool(3))
    bad = state.node_of("worker-0")
    set_fault(world, bad, "True")
    fail_worker(world, state.uid_of("worker-0"), 1, evidence=None)

    def cordoned() -> bool:
        return bool(world.api.get("Node", None, bad)["spec"].get("unschedulable"))

    wait_until(f"{bad} to be cordoned", cordoned)
    set_fault(world, bad, "False")
    wait_until(f"{bad} to be uncordoned", lambda: not cordoned())


def test_the_api_server_records_who_cordoned_a_node_last(world: World, pool: Callable[[int], Pool]) -> None:
    nodes = pool(1)
    [name] = nodes.nodes
    found = NodeEvidence(evidence=Evidence.DEVICE_MEMORY, cause=ECC, time=timestamp(time.time()))
    patch = cordon_patch(world.api.get("Node", None, name), found, time.time())
    assert patch is not None
    world.api.patch("Node", None, name, patch, manager=FIELD_MANAGER)
    assert is_own_cordon(world.api.get("Node", None, name))
    nodes.uncordon(name)
    nodes.cordon(name)
    node = world.api.get("Node", None, name)
    assert cordoned_at(node), "the operator has not looked yet"
    assert is_cordoned(node)
    assert not is_own_cordon(node)
