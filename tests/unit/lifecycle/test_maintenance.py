"""What announces maintenance, and whether a run may leave the node."""

from dataclasses import replace
from typing import Any

import pytest
from megatron_operator.api.platform import BadNodes, Maintenance
from megatron_operator.api.recovery_status import NodeMaintenance, RecoveryStatus
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.maintenance import (
    about_to_start,
    is_near,
    judge_maintenance,
    maintenance_sign,
    maintenance_start,
    move_cause,
    moved,
    plan_move,
    to_leave,
    until_departure,
)
from megatron_operator.lifecycle.moves import LONGEST_MOVE, Moves
from megatron_operator.lifecycle.node_evidence import release
from megatron_operator.lifecycle.node_state import (
    NodeState,
    NodeStatus,
    StartTime,
    start_times,
    unreadable_start_times,
)
from megatron_operator.lifecycle.observation import MaintenanceMove, Room
from megatron_operator.lifecycle.recovery_policy import Move, Wait, decide
from megatron_operator.lifecycle.status_builder import RecipeKey
from megatron_operator.lifecycle.status_size import MAX_NODES

from tests.unit.lifecycle.observations import HEALTHY, on_nodes

NOW = 1_800_000_000.0
GKE = "cloud.google.com/impending-node-termination"
LEAVES = NodeStatus(NodeState.READY, taints=frozenset({GKE}))
HEALTHY_NODE = NodeStatus(NodeState.READY, conditions=frozenset({"VMEventScheduled=False"}))
RULES = Maintenance()


def judged(recovery: RecoveryStatus, nodes: Any, *placed: str) -> RecoveryStatus:
    return judge_maintenance(recovery, nodes, placed, RULES, NOW)


def announced(*nodes: str, **fields: Any) -> RecoveryStatus:
    entry = NodeMaintenance(sign=f"node taint {GKE}", time=timestamp(NOW), **fields)
    return RecoveryStatus(maintenance=dict.fromkeys(nodes, entry))


@pytest.mark.parametrize(
    ("conditions", "taints", "sign"),
    [
        (set(), {GKE}, f"node taint {GKE}"),
        (set(), {"karpenter.sh/disrupted"}, "node taint karpenter.sh/disrupted"),
        ({"VMEventScheduled=True"}, set(), "node condition VMEventScheduled=True"),
        ({"VMEventScheduled=False"}, {"nvidia.com/gpu"}, None),
    ],
)
def test_a_node_announces_maintenance_by_the_conditions_and_taints_of_the_platform(
    conditions: set[str], taints: set[str], sign: str | None
) -> None:
    node = NodeStatus(NodeState.READY, conditions=frozenset(conditions), taints=frozenset(taints))
    assert maintenance_sign(node, RULES, NOW) == sign
    assert maintenance_sign(node, Maintenance(conditions=[], taints=[]), NOW) is None


GKE_START = "cloud.google.com/scheduled-maintenance-time"
OWN_START = "example.com/maintenance-start"
DAY = 86_400.0


def starting(at: float, **fields: Any) -> NodeStatus:
    start = StartTime(at, f"node label {GKE_START}")
    return NodeStatus(NodeState.READY, starts=frozenset({start}), **fields)


@pytest.mark.parametrize(
    ("kind", "key", "value", "start"),
    [
        ("label", GKE_START, "1733083200", 1_733_083_200.0),
        ("annotation", GKE_START, "1733083200", 1_733_083_200.0),
        ("annotation", OWN_START, "2024-12-01T20:00:00Z", 1_733_083_200.0),
        ("annotation", OWN_START, "2024-12-01T21:00:00+01:00", 1_733_083_200.0),
        ("annotation", OWN_START, "2024-12-01t20:00:00.5z", 1_733_083_200.5),
        ("annotation", OWN_START, "2024-13-01T20:00:00Z", None),
        ("label", "example.com/other", "1733083200", None),
    ],
)
def test_labels_and_annotations_of_the_platform_have_the_start_of_maintenance(
    kind: str, key: str, value: str, start: float | None
) -> None:
    node = {"metadata": {"name": "a", f"{kind}s": {key: value, "a": "b"}}}
    found = start_times(node, [GKE_START, OWN_START])
    assert found == (set() if start is None else {StartTime(start, f"node {kind} {key}")})


@pytest.mark.parametrize(
    "value",
    [
        "tomorrow",
        "20241201",
        "1733083200000",
        "2024-W01-1T10",
        "2024-12-01T20:00:00",
        "2024-12-01 20:00:00Z",
        "",
    ],
)
def test_a_value_that_is_no_time_is_unreadable(value: str) -> None:
    node = {"metadata": {"name": "a", "annotations": {OWN_START: value, GKE_START: "1733083200"}}}
    assert unreadable_start_times(node, [GKE_START, OWN_START]) == {f"node annotation {OWN_START}": value}
    assert {each.sign for each in start_times(node, [GKE_START, OWN_START])} == {
        f"node annotation {GKE_START}"
    }


@pytest.mark.parametrize("value", ["0001-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "000000000"])
def test_a_zero_time_announces_nothing_and_can_be_read(value: str) -> None:
    node = {"metadata": {"name": "a", "annotations": {OWN_START: value}}}
    assert start_times(node, [OWN_START]) == set()
    assert unreadable_start_times(node, [OWN_START]) == {}


def test_a_start_moves_runs_for_a_day_after_it_and_then_announces_nothing() -> None:
    late, stale = starting(NOW - DAY + 1), starting(NOW - DAY)
    assert maintenance_sign(late, RULES, NOW) == f"node label {GKE_START}"
    assert to_leave(judged(RecoveryStatus(), {"a": late}, "a"), NOW) == {"a": f"node label {GKE_START}"}
    assert maintenance_sign(stale, RULES, NOW) is None
    assert judged(announced("a", avoided_at=timestamp(NOW)), {"a": stale}).maintenance == {}
    both = NodeStatus(NodeState.READY, starts=stale.starts | starting(NOW + DAY).starts)
    assert maintenance_start(both, RULES, NOW) == NOW + DAY


def test_a_start_alone_announces_maintenance_and_the_first_of_several_counts() -> None:
    later = StartTime(NOW + 2 * DAY, f"node annotation {OWN_START}")
    node = NodeStatus(NodeState.READY, starts=frozenset({later, *starting(NOW + DAY).starts}))
    assert (maintenance_sign(node, RULES, NOW), maintenance_start(node, RULES, NOW)) == (
        f"node label {GKE_START}",
        NOW + DAY,
    )


SCHEDULED = frozenset({"VMEventScheduled=True"})


def test_a_condition_waits_for_a_near_start_and_a_taint_does_not() -> None:
    condition = starting(NOW + DAY, conditions=SCHEDULED)
    assert maintenance_sign(condition, RULES, NOW) == "node condition VMEventScheduled=True"
    assert maintenance_start(condition, RULES, NOW) == NOW + DAY
    tainted = starting(NOW + DAY, taints=frozenset({GKE}))
    assert maintenance_sign(tainted, RULES, NOW) == f"node taint {GKE}"
    assert maintenance_start(tainted, RULES, NOW) is None
    device = starting(NOW + DAY, devices=frozenset({"device a"}))
    assert maintenance_start(device, RULES, NOW) is None


def test_a_condition_moves_a_run_at_once_where_the_start_is_far_away() -> None:
    node = starting(NOW + 7 * DAY, conditions=SCHEDULED)
    assert is_near(node, RULES, NOW)
    recovery = judged(RecoveryStatus(), {"a": node}, "a")
    assert to_leave(recovery, NOW) == {"a": "node condition VMEventScheduled=True"}
    assert recovery.maintenance["a"].starts_at is None


def test_a_run_leaves_with_its_grace_period_and_the_lead_time_before_the_start() -> None:
    nodes = {"a": starting(NOW + DAY)}
    rules = Maintenance(lead_time=600)
    recovery = judge_maintenance(RecoveryStatus(), nodes, {"a"}, rules, NOW, 300.0)
    entry = recovery.maintenance["a"]
    assert (entry.starts_at, entry.leave_at) == (timestamp(NOW + DAY), timestamp(NOW + DAY - 900))
    due = NOW + DAY - 900
    assert to_leave(recovery, due - 1) == {}
    assert until_departure(recovery, due - 60) == 60
    assert to_leave(recovery, due) == {"a": f"node label {GKE_START}"}
    assert until_departure(recovery, due) is None


def test_an_announcement_with_another_start_or_with_a_taint_replaces_the_first() -> None:
    first = judged(RecoveryStatus(), {"a": starting(NOW + DAY)}, "a")
    assert judged(first, {"a": starting(NOW + DAY)}, "a") is first, "the same again is no change"
    later = judged(first, {"a": starting(NOW + 2 * DAY)}, "a")
    assert later.maintenance["a"].starts_at == timestamp(NOW + 2 * DAY)
    now = judged(first, {"a": starting(NOW + DAY, taints=frozenset({GKE}))}, "a")
    assert (now.maintenance["a"].sign, now.maintenance["a"].leave_at) == (f"node taint {GKE}", None)
    assert to_leave(now, NOW) == {"a": f"node taint {GKE}"}


def test_a_run_that_could_not_leave_and_gets_another_start_is_not_kept_by_anything() -> None:
    start = {"starts_at": timestamp(NOW), "leave_at": timestamp(NOW - 900)}
    kept = announced("a", not_avoided="no room", **start)
    assert judged(kept, {"a": starting(NOW)}, "a") is kept
    assert judged(kept, {"a": starting(NOW + DAY)}, "a").maintenance["a"].not_avoided is None
    other_grace = judge_maintenance(kept, {"a": starting(NOW)}, "a", RULES, NOW, 300.0).maintenance["a"]
    assert (other_grace.leave_at, other_grace.not_avoided) == (timestamp(NOW - 1200), "no room")


@pytest.mark.parametrize("lead_time", [900, int(3 * DAY)])
def test_a_run_may_move_to_a_node_that_it_has_to_leave_in_more_than_a_day(lead_time: int) -> None:
    rules, start = Maintenance(lead_time=lead_time), NOW + DAY + lead_time + 300
    assert is_near(starting(start - 1), rules, NOW, 300.0)
    assert not is_near(starting(start), rules, NOW, 300.0)
    assert is_near(LEAVES, rules, NOW)


def left(start: float | None) -> RecoveryStatus:
    """The status of a run that has left node a for a start then; None: for a taint."""
    starts_at = None if start is None else timestamp(start)
    return announced("a", starts_at=starts_at, avoided_at=timestamp(NOW))


@pytest.mark.parametrize("start", [NOW, None])
def test_a_node_that_was_left_is_used_again_once_its_maintenance_starts_much_later(
    start: float | None,
) -> None:
    recovery = left(start).model_copy(update={"nodes_avoided": ["a"]})
    assert judged(recovery, {"a": starting(NOW + 30 * DAY)}).maintenance == {}
    assert judged(recovery, {"a": starting(NOW + 30 * DAY, taints=frozenset({GKE}))}) is recovery


def test_a_run_that_is_back_on_a_node_leaves_it_again_for_maintenance_much_later() -> None:
    recovery = judged(left(NOW), {"a": starting(NOW + 30 * DAY)}, "a")
    entry = recovery.maintenance["a"]
    assert (entry.avoided_at, entry.starts_at) == (None, timestamp(NOW + 30 * DAY))
    assert to_leave(recovery, NOW + 30 * DAY)


def test_a_node_that_was_left_stays_avoided_while_its_maintenance_is_near_or_starts_when_it_did() -> None:
    recovery = left(NOW)
    assert judged(recovery, {"a": starting(NOW)}) is recovery
    postponed = judged(recovery, {"a": starting(NOW + DAY)}).maintenance["a"]
    assert (postponed.avoided_at, postponed.starts_at) == (timestamp(NOW), timestamp(NOW + DAY))
    far = left(NOW + 2 * DAY)
    assert judged(far, {"a": starting(NOW + 2 * DAY)}) is far, "without pods their grace period is not known"


def test_a_node_that_was_avoided_beside_those_that_were_left_has_its_start_recorded() -> None:
    recovery = judged(left(None), {"a": starting(NOW + DAY)})
    assert recovery.maintenance["a"].starts_at == timestamp(NOW + DAY)


def test_only_nodes_of_the_run_are_recorded() -> None:
    nodes = {"a": LEAVES, "b": HEALTHY_NODE}
    recovery = judged(RecoveryStatus(), nodes, "a", "b")
    assert recovery.maintenance == announced("a").maintenance
    assert judged(recovery, nodes, "a", "b") is recovery, "the same again is no change"


def test_what_is_not_known_changes_nothing() -> None:
    recovery = announced("a")
    assert judged(recovery, None, "a") is recovery


@pytest.mark.parametrize("nodes", [{"a": HEALTHY_NODE}, {}], ids=["nothing is announced", "the node is gone"])
def test_an_announcement_that_is_over_is_dropped(nodes: Any) -> None:
    avoided = announced("a", avoided_at=timestamp(NOW))
    assert judged(avoided, nodes).maintenance == {}


def test_a_node_that_the_run_left_by_itself_is_dropped_and_one_that_it_avoids_is_kept() -> None:
    assert judged(announced("a"), {"a": LEAVES}, "b").maintenance == {}
    avoided = announced("a", avoided_at=timestamp(NOW))
    assert judged(avoided, {"a": LEAVES}, "b") is avoided


def plan(room: Room | None, *nodes: str, recovery: RecoveryStatus | None = None, **rules: Any) -> Any:
    return plan_move(recovery or announced(*nodes), room, 2, BadNodes(**rules), NOW)


def test_nothing_is_decided_before_the_room_is_known() -> None:
    assert plan(None, "a") is None
    assert plan(Room(9, 9), recovery=RecoveryStatus()) is None


def test_a_run_leaves_all_announced_nodes_or_none() -> None:
    both = plan(Room(9, 20), "a", "b")
    assert (both.obstacle, set(both.leaving), both.avoid) == (None, {"a", "b"}, both.leaving)
    share = "platform.badNodes.maxShare 0.1 of the nodes allows 1 node"
    assert plan(Room(9, 19), "a", "b").obstacle == share
    assert plan(Room(1, 20), "a").obstacle == "the other nodes have no room for all 2 pods now"


def test_other_announced_nodes_with_free_places_are_avoided_too_as_far_as_the_caps_allow() -> None:
    free = plan(Room(9, 20, {"c": "node taint y"}), "a")
    assert (free.obstacle, set(free.avoid)) == (None, {"a", "c"})
    night = {f"night-{index:02}": "node label y" for index in range(11)}
    some = plan(Room(40, 100, night), "a")
    assert some.obstacle is None, "free nodes that start later keep no run on one that goes"
    assert set(some.avoid) == {"a", *sorted(night)[:9]}, "those that go first"
    recovery = announced("a").model_copy(update={"nodes_avoided": ["bad"]})
    assert set(plan(Room(9, 30, night), recovery=recovery).avoid) == {"a", "night-00"}


def test_a_run_avoids_no_more_announced_nodes_than_a_status_holds() -> None:
    night = {f"night-{index:04}": "node label y" for index in range(2 * MAX_NODES)}
    move = plan(Room(900, 20 * MAX_NODES, night), "a", max_share=1)
    assert (move.obstacle, len(move.avoid)) == (None, 1 + MAX_NODES // 2)
    many = announced("a").model_copy(
        update={"nodes_avoided": [f"bad-{index}" for index in range(MAX_NODES - 2)]}
    )
    assert len(plan(Room(900, 20 * MAX_NODES, night), recovery=many, max_share=1).avoid) == 2


def test_nodes_that_are_avoided_already_count() -> None:
    recovery = announced("a").model_copy(update={"nodes_avoided": ["bad"]})
    assert plan(Room(9, 19), recovery=recovery).obstacle is not None
    assert plan(Room(9, 20), recovery=recovery).obstacle is None
    without = plan_move(recovery, Room(9, 19), 2, BadNodes(), NOW, {"bad"})
    assert without is not None
    assert without.obstacle is None, "but for those that no longer exist"


def test_an_announcement_moves_a_run_once() -> None:
    recovery = announced("a")
    move = plan(Room(9, 20, {"c": "node taint y"}), "a")
    after = moved(recovery, move, "worker-0", NOW, iteration=60)
    assert after.nodes_avoided == ["a", "c"]
    assert after.maintenance["c"].sign == "node taint y"
    assert (after.restarts, after.restarts_by_kind.maintenance) == (0, 1)
    assert (after.history[-1].kind, after.history[-1].node) == ("maintenance", "a")
    released = after.model_copy(update={"nodes_avoided": []})
    assert plan(Room(9, 20), recovery=released) is None


def test_a_released_node_is_left_again_for_a_start_that_lies_ahead() -> None:
    avoided = {"avoided_at": timestamp(NOW - 600), "not_avoided": None}
    ahead = announced("b", starts_at=timestamp(NOW + DAY), leave_at=timestamp(NOW + DAY - 900), **avoided)
    released = release(ahead.model_copy(update={"nodes_avoided": ["b"]}), ["b"], NOW)
    back = judged(released, {"b": starting(NOW + DAY)}, "b")
    assert to_leave(back, NOW) == {}
    assert until_departure(back, NOW) == DAY - 900
    assert to_leave(back, NOW + DAY - 900).keys() == {"b"}
    assert release(ahead, ["a"], NOW).maintenance == ahead.maintenance, "it stays avoided"


@pytest.mark.parametrize(
    ("start", "lead", "expected"),
    [
        (NOW + 600, 900, {"a"}),
        (NOW + 600, 300, set()),
        (NOW, 900, set()),
        (NOW + 7200, 10_000, set()),
        (None, 900, set()),
    ],
    ids=["about to start", "can be left in time", "has started", "in two hours", "not known"],
)
def test_a_node_is_not_released_while_its_maintenance_is_about_to_start(
    start: float | None, lead: float, expected: set[str]
) -> None:
    fields = {} if start is None else {"starts_at": timestamp(start), "leave_at": timestamp(start - lead)}
    recovery = announced("a", avoided_at=timestamp(NOW - 60), **fields)
    assert about_to_start(recovery, NOW) == expected


def test_a_cause_names_a_few_nodes() -> None:
    nodes = dict.fromkeys(["d", "c", "b", "a"], "node taint x")
    assert move_cause(nodes) == "maintenance of a, b, c and 1 more (node taint x)"


def test_only_a_run_that_trains_and_may_move_does() -> None:
    pods = on_nodes({}, {})
    move = MaintenanceMove({"node-1": "node taint x"}, {"node-1": "node taint x"})
    seen = replace(HEALTHY, pods=pods, maintenance=move)
    assert decide(seen) == Move(move)
    stays = MaintenanceMove(move.leaving, move.avoid, "no room")
    cases: tuple[dict[str, Any], ...] = ({"maintenance": stays}, {"heartbeat": None})
    for changes in cases:
        other = replace(seen, **changes)
        assert isinstance(decide(other), Wait), changes


def test_places_of_runs_that_move_are_taken_until_they_have_arrived_or_took_too_long() -> None:
    moves, first, second = Moves(), RecipeKey("default", "first"), RecipeKey("default", "second")
    moves.add(first, 3, NOW)
    assert (moves.of_others(second, NOW), moves.of_others(first, NOW)) == (3, 0)
    assert moves.of_others(second, NOW + LONGEST_MOVE) == 0
    moves.add(first, 3, NOW)
    assert moves.forget(first)
    assert not moves.forget(first)
    assert moves.of_others(second, NOW) == 0
