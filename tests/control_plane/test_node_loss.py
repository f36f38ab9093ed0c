"""Nodes are lost under a run: KWOK stops simulating their kubelets, the control plane does the rest."""

from collections.abc import Callable

from testkit.waiting import LONG_DEADLINE, wait_until
from tests.control_plane.test_operator_restart import killed_after_every_write
from tests.control_plane.world import World


def test_pods_of_a_lost_node_are_replaced_on_another(world: World, lose: Callable[[str], None]) -> None:
    """Without force deletion the pods of a lost node stay Terminating and block the gang."""
    world.apply("run")
    before = world.train("run", 60, checkpoint=50)
    lost = before.node_of("worker-0")
    lose(lost)
    state = world.wait_for("run", pods=2, without=[before.uid_of("worker-0")], seconds=LONG_DEADLINE)
    assert state.node_of("worker-0") != lost
    assert state.uid_of("master-0") == before.uid_of("master-0")
    recovery = world.train(
        "run", 51, checkpoint=50, generation=2, resumedFrom=50, recovery={"restartsByKind": {"node": 1}}
    ).recovery
    assert recovery["restarts"] == 1
    assert recovery["lastIncident"]["cause"] == f"{lost}: unreachable"
    assert recovery["lastIncident"]["node"] == lost


def test_a_job_is_re_created_although_its_old_pods_are_on_a_lost_node(
    world: World, lose: Callable[[str], None]
) -> None:
    world.apply("run")
    before = world.train("run", 60, checkpoint=50)
    lost = before.node_of("worker-0")
    lose(lost)
    wait_until(f"{lost} to be unreachable", lambda: world.node_ready(lost) == "Unknown")
    world.edit("run", training={"trainIters": 300})
    state = world.wait_for("run", pods=2, without=before.pod_uids, observed=True, seconds=LONG_DEADLINE)
    assert lost not in {state.node_of("master-0"), state.node_of("worker-0")}


def test_a_lost_node_is_counted_once_however_often_the_operator_dies(
    world: World, lose: Callable[[str], None]
) -> None:
    world.apply("run")
    before = world.train("run", 60, checkpoint=50)
    lost = before.node_of("worker-0")
    lose(lost)
    with killed_after_every_write(world) as kills:
        world.wait_for(
            "run",
            without=[before.uid_of("worker-0")],
            where=lambda state: "worker-0" in state.pods and state.recovery.get("restarts", 0) > 0,
            seconds=2 * LONG_DEADLINE,
        )
    assert kills[0] >= 2
    recovery = world.train(
        "run", 51, checkpoint=50, generation=2, resumedFrom=50, recovery={"restartsByKind": {"node": 1}}
    ).recovery
    assert recovery["restarts"] == 1
    assert recovery["nodeFailures"] == {lost: 1}
