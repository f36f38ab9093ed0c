"""A node on which a run fails again and again."""

from collections.abc import Callable

from testkit.faults.injections import Hit, Scene, delete_pod, kill_rank
from testkit.watched_run import WatchedRun, eventually

AVOID_AFTER_TWO = {"recovery": {"nodes": {"avoidAfter": 2}}}


def fail_twice_on_one_node(scene: Scene[WatchedRun]) -> Hit:
    """Kill a rank twice on one node, then delete the pod if the operator has not moved it already."""
    run, kill = scene.run, kill_rank(1, 0)
    hit = _survive(scene, kill)
    bad = hit.node
    _survive(scene, kill)
    eventually(
        f"status.recovery.nodesAvoided to name {bad}",
        lambda: run.recovery().get("nodesAvoided") == [bad] or None,
    )
    run.settled()
    if scene.node_of(1) == bad:
        _survive(scene, delete_pod(1))
    assert scene.node_of(1) != bad, f"{run.pod_name(1)} is on {bad} again, which is avoided"
    return hit


def _survive(scene: Scene[WatchedRun], fault: Callable[[Scene], Hit]) -> Hit:
    """Do a fault, and wait until the run trains again and tells that it is back from it."""
    run = scene.run
    before = run.settled()
    hit = fault(scene)

    def back() -> bool | None:
        run.require_alive()
        new = run.incidents(before.incidents)
        told = bool(new) and all(each.get("recoveredAt") for each in new)
        return (told and before.resumed_from(run.steps()) is not None) or None

    eventually(f"{run.name} to be back", back)
    return hit
