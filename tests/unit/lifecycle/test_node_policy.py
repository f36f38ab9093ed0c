"""What the recovery policy decides about nodes: lost, failed too often, needed again."""

from dataclasses import replace

import pytest
from megatron_operator.lifecycle.observation import (
    AvoidanceLimits,
    History,
    Observation,
    PodView,
)
from megatron_operator.lifecycle.recovery_policy import (
    Avoid,
    ForceDelete,
    ReleaseNodes,
    Wait,
    decide,
    force_delete_or_wait,
)
from megatron_operator.lifecycle.status_size import MAX_NODES

from tests.unit.lifecycle.observations import HEALTHY, LIMITS, NOW, TRAINING, on_nodes, waiting

UNREACHABLE = {"unreachable_since": NOW - 31}
RECENTLY_UNREACHABLE = {"unreachable_since": NOW - 29}


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        (on_nodes({}, UNREACHABLE), ("run-1",)),
        (on_nodes({}, UNREACHABLE | {"deleting": True}), ("run-1",)),
        (on_nodes({}, RECENTLY_UNREACHABLE | {"deleting": True, "overdue": True}), ("run-1",)),
        (on_nodes(UNREACHABLE, UNREACHABLE, RECENTLY_UNREACHABLE), ("run-0", "run-1")),
        # While pods are being deleted, only those may be force-deleted.
        (on_nodes({"deleting": True}, UNREACHABLE | {"deleting": True}, UNREACHABLE), ("run-1",)),
    ],
)
def test_pods_of_a_lost_node_are_force_deleted(pods: tuple[PodView, ...], expected: tuple[str, ...]) -> None:
    decision = decide(replace(HEALTHY, size=len(pods), pods=pods))
    assert isinstance(decision, ForceDelete)
    assert decision.pods == expected
    assert "unreachable" in decision.cause


@pytest.mark.parametrize(
    "pods",
    [
        on_nodes({}, RECENTLY_UNREACHABLE),
        on_nodes({}, RECENTLY_UNREACHABLE | {"deleting": True}),
        on_nodes({}, {"deleting": True, "overdue": True}),
    ],
    ids=["may return", "may return and end it", "its kubelet is reachable and slow"],
)
def test_pods_are_not_force_deleted_while_a_kubelet_may_end_them(pods: tuple[PodView, ...]) -> None:
    decision = decide(replace(HEALTHY, size=len(pods), pods=pods))
    assert isinstance(decision, Wait)


def test_an_unreachable_node_is_checked_again_when_the_patience_ends() -> None:
    decision = decide(replace(HEALTHY, pods=on_nodes({}, RECENTLY_UNREACHABLE)))
    assert isinstance(decision, Wait)
    assert decision.seconds == pytest.approx(1.0)


def test_pods_of_a_deleted_job_on_a_lost_node_are_force_deleted() -> None:
    assert isinstance(force_delete_or_wait(on_nodes(UNREACHABLE | {"deleting": True}), NOW), ForceDelete)
    assert isinstance(force_delete_or_wait(on_nodes({"deleting": True}), NOW), Wait)


AVOIDING = replace(LIMITS, avoid_after=2)
FAILING = History("run", node_failures={"node-1": 2, "node-0": 1})
MANY = frozenset(f"node-{number}" for number in range(100, 100 + MAX_NODES))
RESTARTING = replace(HEALTHY, pods=on_nodes({}, {}), limits=AVOIDING, history=FAILING)


def test_a_node_that_failed_too_often_is_avoided_and_its_pod_moves_while_nothing_trains() -> None:
    starting = replace(TRAINING, phase="rendezvous")
    decision = decide(replace(RESTARTING, heartbeat=starting))
    assert decision == Avoid(("node-1",), ("run-1",), "node-1 failed 2 times (recovery.nodes.avoidAfter 2)")


def test_a_pod_that_trains_is_not_moved() -> None:
    assert decide(RESTARTING) == Avoid(("node-1",), (), "node-1 failed 2 times (recovery.nodes.avoidAfter 2)")


def test_a_node_with_evidence_of_failed_hardware_is_avoided_at_the_first_failure() -> None:
    proven = History("run", node_failures={"node-1": 1}, proven={"node-1": "has DeviceMemory (ECC)"})
    assert decide(replace(RESTARTING, history=proven)) == Avoid(
        ("node-1",), (), "node-1 has DeviceMemory (ECC)"
    )
    assert isinstance(decide(replace(RESTARTING, history=proven, limits=LIMITS)), Wait), "disabled"


BOTH = History("run", node_failures={"node-1": 2, "node-0": 2})


@pytest.mark.parametrize(
    ("limits", "nodes"),
    [
        (AvoidanceLimits(4, {"node-0": 1, "node-1": 1, "node-2": 1, "node-3": 1}), ("node-0", "node-1")),
        (AvoidanceLimits(1, {"node-0": 1, "node-1": 1, "node-2": 1, "node-3": 1}), ("node-0",)),
        (AvoidanceLimits(4, {"node-0": 1, "node-1": 1, "node-2": 1}), ("node-0",)),
        (AvoidanceLimits(4, {"node-0": 3, "node-1": 1}), ("node-1",)),
        (AvoidanceLimits(4, {"node-1": 1, "node-2": 1}), ("node-0",)),
        (AvoidanceLimits(4), ("node-0", "node-1")),
    ],
    ids=["enough", "one now", "one spare", "the larger is needed", "a lost one takes no room", "unknown"],
)
def test_a_run_never_avoids_nodes_that_it_needs(limits: AvoidanceLimits, nodes: tuple[str, ...]) -> None:
    decision = decide(replace(RESTARTING, history=BOTH, avoidance=limits))
    assert isinstance(decision, Avoid)
    assert decision.nodes == nodes


def test_a_run_without_a_spare_node_avoids_none() -> None:
    limits = AvoidanceLimits(4, {"node-0": 1, "node-1": 1})
    assert isinstance(decide(replace(RESTARTING, history=BOTH, avoidance=limits)), Wait)


def test_nodes_are_released_at_once_where_the_others_have_no_room() -> None:
    limits = AvoidanceLimits(0, {"node-0": 1, "node-9": 1})
    seen = waiting(5, releasable=frozenset({"node-9"}), history=replace(FAILING, node_failures={}))
    avoiding = replace(seen.history, avoided=frozenset({"node-9"}))
    assert decide(replace(seen, avoidance=limits, history=avoiding)) == ReleaseNodes(
        ("node-9",), "the other nodes have room for 1 of 2 pods"
    )


def test_a_node_without_evidence_is_released() -> None:
    history = History("run", avoided=frozenset({"node-1"}), cleared=frozenset({"node-1"}))
    assert decide(replace(RESTARTING, history=history)) == ReleaseNodes(
        ("node-1",), "there is no evidence against it any longer"
    )


@pytest.mark.parametrize(
    "seen",
    [
        replace(RESTARTING, history=replace(FAILING, avoided=frozenset({"node-1"}))),
        replace(RESTARTING, limits=LIMITS),
        replace(RESTARTING, history=replace(FAILING, node_failures={"node-1": 1})),
        replace(RESTARTING, pods=on_nodes({"deleting": True}, {})),
        replace(RESTARTING, history=replace(FAILING, avoided=MANY)),
    ],
    ids=["already avoided", "disabled", "not often enough", "pods are being deleted", "too many are avoided"],
)
def test_a_node_is_not_avoided_while(seen: Observation) -> None:
    assert isinstance(decide(seen), Wait)


def test_a_bad_node_is_better_than_none() -> None:
    releasable = frozenset({"node-9"})
    assert decide(waiting(300, releasable=releasable)) == ReleaseNodes(
        ("node-9",), "pods could not be scheduled elsewhere for 300 s"
    )
    early = decide(waiting(200, releasable=releasable))
    assert isinstance(early, Wait)
    assert early.seconds == pytest.approx(100)


def test_a_lost_node_is_not_avoided_while_the_run_has_no_room_without_it() -> None:
    limits = AvoidanceLimits(4, {"node-1": 1})
    lost = History("run", node_failures={"node-0": 2})
    assert isinstance(decide(replace(RESTARTING, history=lost, avoidance=limits)), Wait)
