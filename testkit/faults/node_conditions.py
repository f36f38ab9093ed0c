"""Nodes whose monitor reports a fault, or announces maintenance, by a condition."""

from testkit.faults.injections import (
    AnyContext,
    FaultContext,
    InjectedFault,
    Injection,
    delete_pod,
    kill_rank,
)
from testkit.waiting import wait_until
from testkit.watched_run import WatchedRun

AVOIDING = {"recovery": {"nodes": {"avoidAfter": 2}}}
FAULT = "GPUXIDErrors"
"""A condition of AKS' node-problem-detector, and of others."""
ANNOUNCEMENT = "VMEventScheduled"
"""A condition of AKS' node-problem-detector."""


def kill_rank_on_faulty_node(context: FaultContext[WatchedRun]) -> InjectedFault:
    """Kill a rank on a node that reports a fault, then delete its pod unless the operator has moved it."""
    run, bad = context.run, context.node_of(1)
    _set_condition(run, bad, FAULT, "True")
    try:
        fault = _inject_and_recover(context, kill_rank(1, 0))
        wait_until(
            f"status.recovery.nodesAvoided to name {bad}",
            lambda: run.recovery().get("nodesAvoided") == [bad],
        )
        run.settled()
        if context.node_of(1) == bad:
            _inject_and_recover(context, delete_pod(1))
        assert context.node_of(1) != bad, f"{run.place(1)} is on {bad} again, which is avoided"
    finally:
        _set_condition(run, bad, FAULT, "False")
    return fault


def announce_maintenance(context: FaultContext[WatchedRun]) -> InjectedFault:
    """Announce that a node will go; wait until the run trains elsewhere, without an iteration done twice."""
    run, going = context.run, context.node_of(1)
    before = run.settled()

    def announce(context: AnyContext) -> InjectedFault:
        _set_condition(run, going, ANNOUNCEMENT, "True")
        return context.fault_at(1)

    try:
        fault = _inject_and_recover(context, announce)
        records = run.records()
        reached = max(each.iteration for each in records if each.generation == before.generation)
        resumed = before.resumed_from(records)
        assert resumed == reached, f"iteration {reached} was done, and {resumed} is where the run went on"
        stayed = [run.place(rank) for rank in range(run.nodes) if context.node_of(rank) == going]
        assert not stayed, f"{stayed} are on {going}, whose maintenance is announced"
    finally:
        _set_condition(run, going, ANNOUNCEMENT, "False")
    return fault


def _set_condition(run: WatchedRun, node: str, kind: str, status: str) -> None:
    """Set a condition as a monitor does; the kubelet keeps conditions that are not its own."""
    moment = "2026-01-01T00:00:00Z"
    condition = {"type": kind, "status": status, "lastHeartbeatTime": moment, "lastTransitionTime": moment}
    known = run.api.get("Node", None, node)["status"]["conditions"]
    conditions = [*(each for each in known if each["type"] != kind), condition]
    run.api.patch("Node", None, node, {"status": {"conditions": conditions}}, "status")


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
