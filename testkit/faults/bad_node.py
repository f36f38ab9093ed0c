"""A node on which a run fails repeatedly."""

from testkit.faults.injections import FaultContext, InjectedFault, Injection, delete_pod, kill_rank
from testkit.waiting import wait_until
from testkit.watched_run import WatchedRun

AVOID_AFTER_TWO = {"recovery": {"nodes": {"avoidAfter": 2}}}


def fail_twice_on_one_node(context: FaultContext[WatchedRun]) -> InjectedFault:
    """Kill a rank twice on one node, then delete the pod unless the operator has already moved it."""
    run, kill = context.run, kill_rank(1, 0)
    fault = _inject_and_recover(context, kill)
    bad = fault.node
    _inject_and_recover(context, kill)
    wait_until(
        f"status.recovery.nodesAvoided to name {bad}",
        lambda: run.recovery().get("nodesAvoided") == [bad],
    )
    run.settled()
    if context.node_of(1) == bad:
        _inject_and_recover(context, delete_pod(1))
    assert context.node_of(1) != bad, f"{run.pod_name(1)} is on {bad} again, which is avoided"
    return fault


def _inject_and_recover(context: FaultContext[WatchedRun], inject: Injection) -> InjectedFault:
    """Inject a fault; wait until the run trains again and its incidents are reported as recovered."""
    run = context.run
    before = run.settled()
    fault = inject(context)

    def recovered() -> bool:
        run.require_alive()
        reported = run.recovered_incidents(before.incidents) is not None
        return reported and before.resumed_from(run.records()) is not None

    wait_until(f"{run.name} to recover", recovered)
    return fault
