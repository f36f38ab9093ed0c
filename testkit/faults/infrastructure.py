"""Faults in nodes, the control plane, the operators and name service, and two faults at once."""

import contextlib
import time
from collections.abc import Callable

from localcluster.errors import ClusterError
from localcluster.faults import Container

from testkit.faults.injections import AnyContext, InjectedFault, Injection, delete_pod, kill_rank
from testkit.installation import OPERATOR_NAMESPACE
from testkit.waiting import wait_until
from testkit.watched_run import NODES, RANKS_PER_NODE

VICTIM_NODE = "node-1"
"""node-0 runs the training-operator and the storage provisioner."""


def hold(seconds: float) -> None:
    """Let a fault last. This is part of the fault; nothing is synchronised with it."""
    time.sleep(seconds)


# Nodes.


def lose_node(seconds: float | None) -> Injection:
    """Cut a node's power for `seconds`, or until the row is over."""

    def inject(context: AnyContext) -> InjectedFault:
        on_it = [rank for rank in range(NODES) if context.node_of(rank) == VICTIM_NODE]
        assert on_it, f"no pod of {context.run.name} is on {VICTIM_NODE}"
        fault = context.fault_at(on_it[0])
        context.cluster.node_stop(VICTIM_NODE)
        if seconds is None:
            context.undo.callback(context.cluster.node_start, VICTIM_NODE)
        else:
            hold(seconds)
            context.cluster.node_start(VICTIM_NODE)
        return fault

    return inject


# The control plane. While it is down, the run's pods cannot be read.


def kill_rank_without(component: str, seconds: float) -> Injection:
    """A component of the control plane is down for `seconds`, and meanwhile a rank is killed."""

    def inject(context: AnyContext) -> InjectedFault:
        fault, victim = context.fault_at(1, RANKS_PER_NODE), context.run.ranks(1)[0]
        with context.cluster.component_down(component):
            victim.kill()
            hold(seconds)
        return fault

    return inject


def replace_pod_without(component: str, seconds: float) -> Injection:
    """A component of the cluster is down for `seconds` while a pod must be replaced."""

    def inject(context: AnyContext) -> InjectedFault:
        fault = delete_pod(1)(context)
        with context.cluster.component_down(component):
            hold(seconds)
        return fault

    return inject


# The operators.


def _kill_deployment(context: AnyContext, namespace: str, selector: str) -> None:
    """SIGKILL PID 1 of a Deployment's pods and delete them, so that new ones start at once."""
    for pod in context.run.api.list("Pod", namespace, labelSelector=selector):
        for state in pod.get("status", {}).get("containerStatuses", []):
            if "running" in state["state"]:
                # The containers of a lost node are gone although the pod's status does not show it yet.
                with contextlib.suppress(ClusterError):
                    Container(state["containerID"]).first.kill()
        arguments = ("delete", "pod", pod["metadata"]["name"], "--force", "--grace-period=0")
        context.kubectl.run("-n", namespace, *arguments)


def kill_operator(context: AnyContext) -> None:
    """Kill this project's operator."""
    _kill_deployment(context, OPERATOR_NAMESPACE, "app.kubernetes.io/name=megatron-operator")


def kill_training_operator(context: AnyContext) -> None:
    """Kill the Kubeflow training-operator."""
    _kill_deployment(context, "kubeflow", "control-plane=kubeflow-training-operator")


def kill_controller(name: str) -> Callable[[AnyContext], None]:
    """Kill a controller that is a process of the host; it is started again at once."""

    def kill(context: AnyContext) -> None:
        with context.cluster.component_down(name):
            pass

    return kill


def _replacement(context: AnyContext, uid: str) -> dict[str, object] | None:
    pod = context.run.pod(1)
    return pod if pod is not None and pod["metadata"]["uid"] != uid else None


def _pod_is_gone(context: AnyContext, uid: str) -> bool:
    pod = context.run.pod(1)
    return pod is None or pod["metadata"]["uid"] != uid


def _replacement_exists(context: AnyContext, uid: str) -> bool:
    return _replacement(context, uid) is not None


def _replacement_runs(context: AnyContext, uid: str) -> bool:
    pod = _replacement(context, uid)
    try:
        return pod is not None and bool(context.run.container(1).processes())
    except ClusterError:
        return False


def _ranks_started(context: AnyContext, uid: str) -> bool:
    try:
        return _replacement_runs(context, uid) and len(context.run.ranks(1)) == RANKS_PER_NODE
    except ClusterError:
        return False


STAGES: dict[str, Callable[[AnyContext, str], bool]] = {
    "when the pod is gone": _pod_is_gone,
    "when its replacement is created": _replacement_exists,
    "when its replacement runs": _replacement_runs,
    "when its ranks start": _ranks_started,
}
"""Stages of the replacement of a pod, each with the check that it is reached; `str` is the old pod's uid."""


def kill_during_recovery(
    kill: Callable[[AnyContext], None], stage: Callable[[AnyContext, str], bool]
) -> Injection:
    """Delete a pod, and kill an operator as soon as the recovery has reached `stage`."""

    def inject(context: AnyContext) -> InjectedFault:
        before = context.run.pod(1)
        assert before is not None
        uid = before["metadata"]["uid"]
        fault = delete_pod(1)(context)
        wait_until("the recovery to reach the stage", lambda: stage(context, uid))
        kill(context)
        return fault

    return inject


# Two at once.


def both(first: Injection, second: Injection) -> Injection:
    """Two faults right after each other. The status must name what the first one hit."""

    def inject(context: AnyContext) -> InjectedFault:
        fault = first(context)
        second(context)
        return fault

    return inject


rank_and_pod = both(kill_rank(0, 0), delete_pod(1))
both_pods = both(delete_pod(1), delete_pod(0))


def node_and_operator(context: AnyContext) -> InjectedFault:
    """Cut a node's power until the row is over, and kill this project's operator."""
    fault = lose_node(None)(context)
    kill_operator(context)
    return fault
