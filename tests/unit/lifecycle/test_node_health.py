"""What nodes report about their hardware, and how many of them a run may avoid."""

from dataclasses import replace

import pytest
from megatron_operator.api.platform import BadNodes
from megatron_operator.api.recovery_status import RecoveryStatus
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.incident_history import append
from megatron_operator.lifecycle.node_evidence import add_evidence, record_avoided, to_avoid
from megatron_operator.lifecycle.node_health import (
    avoidance_limits,
    forget_outdated,
    hardware_sign,
    judge_nodes,
    suspects,
)
from megatron_operator.lifecycle.node_state import NodeState, NodeStatus, with_signs

NOW = 1_800_000_000.0
RULES = BadNodes()
READY = NodeStatus(NodeState.READY)
FAULTY = replace(READY, conditions=frozenset({"GPUXIDErrors=True"}))
INTERRUPTED = append(
    RecoveryStatus(), time=timestamp(NOW), kind="rank", cause="rank 3 was killed by SIGKILL", node="node-1"
)


def test_a_node_is_read_with_its_conditions_and_taints() -> None:
    conditions = [{"type": "Ready", "status": "True"}, {"type": "GPUMissing", "status": "True"}]
    taints = [{"key": "nvidia.com/gpu-xid-error"}]
    node = {"metadata": {}, "status": {"conditions": conditions}, "spec": {"taints": taints}}
    found = with_signs(READY, node)
    assert found.conditions == {"GPUMissing=True"}
    assert found.taints == {"nvidia.com/gpu-xid-error"}


@pytest.mark.parametrize(
    ("node", "sign"),
    [
        (READY, None),
        (replace(READY, conditions=frozenset({"GPUXIDErrors=False", "MemoryPressure=True"})), None),
        (replace(READY, taints=frozenset({"dedicated"})), None),
        (FAULTY, ("NodeCondition", "node condition GPUXIDErrors=True")),
        (
            replace(READY, conditions=frozenset({"AcceleratedHardwareReady=False"})),
            ("NodeCondition", "node condition AcceleratedHardwareReady=False"),
        ),
        (
            replace(READY, taints=frozenset({"nvidia.com/gpu-xid-error"})),
            ("NodeTaint", "node taint nvidia.com/gpu-xid-error"),
        ),
    ],
)
def test_conditions_and_taints_of_hardware_monitors_are_evidence(
    node: NodeStatus, sign: tuple[str, str] | None
) -> None:
    assert hardware_sign(node, RULES) == sign


def test_the_platform_states_which_conditions_and_taints_are_evidence() -> None:
    rules = BadNodes.model_validate({"conditions": ["OurProbe"], "taints": ["ours"]})
    assert hardware_sign(FAULTY, rules) is None
    assert hardware_sign(replace(READY, conditions=frozenset({"OurProbe=True"})), rules) is not None
    assert hardware_sign(replace(READY, taints=frozenset({"ours"})), rules) is not None


def test_the_node_of_an_interruption_that_reports_a_fault_is_blamed_until_it_is_healthy() -> None:
    assert suspects(INTERRUPTED) == {"node-1"}
    blamed = judge_nodes(INTERRUPTED, {"node-1": FAULTY, "node-2": FAULTY}, RULES, NOW)
    assert blamed.node_failures == {"node-1": 1}, "the run was not interrupted on the other one"
    assert judge_nodes(blamed, {"node-1": FAULTY}, RULES, NOW + 5) == blamed
    assert to_avoid(blamed, 2) == ("node-1",)
    silent = NodeStatus(NodeState.UNREACHABLE)
    assert judge_nodes(blamed, {"node-1": silent}, RULES, NOW + 5) == blamed
    healthy = judge_nodes(blamed, {"node-1": READY}, RULES, NOW + 9)
    assert (healthy.node_failures, healthy.node_evidence) == ({}, {})


def test_what_a_rank_reported_does_not_vanish_with_the_nodes_conditions() -> None:
    blamed = add_evidence(INTERRUPTED, "node-1", "DeviceMemory", "ECC", NOW)
    assert judge_nodes(blamed, {"node-1": READY}, RULES, NOW + 5) == blamed


def test_no_node_is_read_while_the_run_trains() -> None:
    assert suspects(RecoveryStatus()) == frozenset()


def avoided(*moments: float) -> RecoveryStatus:
    """A run that began to avoid a node at each of these moments."""
    recovery = RecoveryStatus()
    for index, moment in enumerate(moments):
        name = f"bad-{index}"
        recovery = add_evidence(recovery, name, "DeviceMemory", f"ECC {'x' * index}", moment)
        recovery = record_avoided(recovery, {name}, moment)
    names = [f"bad-{index}" for index in range(len(moments))]
    return recovery.model_copy(update={"nodes_avoided": names})


def pool(size: int) -> dict[str, int]:
    return {f"node-{index}": 1 for index in range(size)}


@pytest.mark.parametrize(
    ("recovery", "places", "count"),
    [
        (avoided(), pool(5), 1),
        (avoided(), pool(100), 4),
        (avoided(NOW - 60), pool(5), 0),
        (avoided(NOW - 60, NOW - 120), pool(100), 2),
        (avoided(NOW - 4000, NOW - 120), pool(100), 3),
        (avoided(*(NOW - 4000 - 100 * i for i in range(10))), pool(90), 0),
        (avoided(), None, 1),
    ],
    ids=[
        "one node of a small pool",
        "the number in an hour",
        "no second one of a small pool",
        "the number in an hour, two used",
        "older ones do not count",
        "the share of the pool",
        "an unknown pool",
    ],
)
def test_the_nodes_that_a_run_avoids_are_limited_by_share_and_per_hour(
    recovery: RecoveryStatus, places: dict[str, int] | None, count: int
) -> None:
    assert avoidance_limits(recovery, places, 4, RULES, NOW).count == count


def test_a_node_that_no_longer_exists_uses_up_the_hour_and_no_share_of_the_pool() -> None:
    earlier, recent = avoided(NOW - 4000), avoided(NOW - 60)
    assert avoidance_limits(earlier, pool(5), 4, RULES, NOW, {"bad-0"}).count == 1
    assert avoidance_limits(recent, pool(100), 4, RULES, NOW, {"bad-0"}).count == 3


def test_evidence_against_an_avoided_node_is_forgotten_an_hour_later_once_the_node_is_gone() -> None:
    recovery = avoided(NOW - 3600, NOW - 3600)
    left = forget_outdated(recovery, {"bad-0"}, {}, NOW)
    assert (set(left.node_evidence), set(left.node_failures)) == ({"bad-1"}, {"bad-1"})
    assert forget_outdated(recovery, {"bad-0"}, {}, NOW - 1) is recovery
    assert forget_outdated(recovery, (), {}, NOW) is recovery


def test_evidence_against_a_node_that_was_uncordoned_since_it_is_avoided_is_forgotten() -> None:
    recovery = avoided(NOW - 3600, NOW - 3600)
    annotations = {"megatron.training/uncordoned-at": str(int(NOW - 60))}
    node = with_signs(READY, {"metadata": {"annotations": annotations}})
    left = forget_outdated(recovery, (), {"bad-0": node, "bad-1": READY}, NOW)
    assert set(left.node_evidence) == {"bad-1"}
    assert forget_outdated(recovery, (), {"bad-0": node}, NOW - 1) is recovery, "it counts for maxPerHour"
    earlier = avoided(NOW - 30)
    assert forget_outdated(earlier, (), {"bad-0": node}, NOW + 7200) is earlier, "it failed again"
