"""Free nodes that a run avoids when it moves, because their maintenance is announced too, use up no cap."""

from megatron_operator.api.platform import BadNodes
from megatron_operator.api.recovery_status import RecoveryStatus
from megatron_operator.lifecycle.maintenance import moved
from megatron_operator.lifecycle.node_health import avoidance_limits, precautions
from megatron_operator.lifecycle.observation import Room

from tests.unit.lifecycle.test_maintenance import LEAVES, NOW, announced, judged, plan


def in_a_rolling_upgrade() -> RecoveryStatus:
    """The status of a run on n0 to n7 of 40 nodes that has left n0, and avoids free ones: n8, n9 and n10."""
    night = {f"n{index}": "node label y" for index in range(8, 14)}
    move = plan(Room(9, 40, night), "n0")
    assert set(move.avoid) == {"n0", "n8", "n9", "n10"}
    return moved(announced("n0"), move, "worker-0", NOW, iteration=60)


def test_nodes_that_are_avoided_as_a_precaution_keep_no_run_on_one_that_goes() -> None:
    recovery = in_a_rolling_upgrade()
    due = recovery.model_copy(update={"maintenance": recovery.maintenance | announced("n1").maintenance})
    move = plan(
        Room(9, 40, {"n9": "node taint y", "n8": "node label y", "n10": "node label y"}), recovery=due
    )
    assert (move.obstacle, set(move.avoid), move.dropped) == (None, {"n1", "n9", "n8"}, {"n10"})
    after = moved(due, move, "worker-1", NOW, iteration=90)
    assert after.nodes_avoided == ["n0", "n1", "n8", "n9"], "as many as the share allows"
    assert after.maintenance.keys() == {"n0", "n1", "n8", "n9"}
    assert precautions(after) == {"n8", "n9"}


def test_a_node_on_which_the_run_has_a_pod_is_no_precaution() -> None:
    recovery = in_a_rolling_upgrade()
    assert precautions(recovery) == {"n8", "n9", "n10"}
    nodes = dict.fromkeys(recovery.maintenance, LEAVES)
    assert precautions(judged(recovery, nodes, "n8")) == {"n9", "n10"}
    assert judged(recovery, nodes) is recovery


def test_a_bad_node_can_be_avoided_beside_those_that_are_avoided_as_a_precaution() -> None:
    recovery, places = in_a_rolling_upgrade(), {f"n{index}": 1 for index in range(40)}
    assert avoidance_limits(recovery, places, 8, BadNodes(), NOW).count == 3
