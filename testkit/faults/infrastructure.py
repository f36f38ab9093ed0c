"""Faults of what a run stands on: nodes, the control plane, the operators, name service, several at once."""

import contextlib
import time
from collections.abc import Callable

from localcluster.errors import ClusterError
from localcluster.faults import Container

from demo.__main__ import OPERATOR_NAMESPACE
from testkit.faults.injections import Hit, Scene, delete_pod, kill_rank
from testkit.watched_run import NODES, RANKS_PER_NODE, eventually

VICTIM_NODE = "node-1"
"""node-0 carries the training-operator and the storage provisioner."""


def hold(seconds: float) -> None:
    """Let a fault last. It is part of the fault, nothing waits for it."""
    time.sleep(seconds)


# Nodes.


def lose_node(seconds: float | None) -> Callable[[Scene], Hit]:
    """Cut a node's power: for `seconds`, or until the row is over."""

    def inject(scene: Scene) -> Hit:
        on_it = [rank for rank in range(NODES) if scene.node_of(rank) == VICTIM_NODE]
        assert on_it, f"no pod of {scene.run.name} is on {VICTIM_NODE}"
        hit = scene.hit(on_it[0])
        scene.machine.node_stop(VICTIM_NODE)
        if seconds is None:
            scene.undo.callback(scene.machine.node_start, VICTIM_NODE)
        else:
            hold(seconds)
            scene.machine.node_start(VICTIM_NODE)
        return hit

    return inject


# The control plane. While it is away, the run must be looked at beforehand.


def without(component: str, seconds: float) -> Callable[[Scene], Hit]:
    """A part of the control plane is away for `seconds`, and meanwhile a rank is killed."""

    def inject(scene: Scene) -> Hit:
        hit, victim = scene.hit(1, RANKS_PER_NODE), scene.run.ranks(1)[0]
        with scene.machine.component_away(component):
            victim.kill()
            hold(seconds)
        return hit

    return inject


def replace_pod_without(component: str, seconds: float) -> Callable[[Scene], Hit]:
    """A part of the cluster is away for `seconds` while a pod must be replaced."""

    def inject(scene: Scene) -> Hit:
        hit = delete_pod(1)(scene)
        with scene.machine.component_away(component):
            hold(seconds)
        return hit

    return inject


# The operators.


def _kill_deployment(scene: Scene, namespace: str, selector: str) -> None:
    """SIGKILL the first process of a Deployment's pod and take the pod away, so that the next starts at
    once."""
    pods = scene.run.api.list("Pod", namespace, labelSelector=selector)
    for pod in pods:
        for state in pod.get("status", {}).get("containerStatuses", []):
            if "running" in state["state"]:
                # A node that was lost has taken its containers with it, and not told it yet.
                with contextlib.suppress(ClusterError):
                    Container(state["containerID"]).first.kill()
        words = ("delete", "pod", pod["metadata"]["name"], "--force", "--grace-period=0")
        scene.cluster.kubectl("-n", namespace, *words)


def kill_operator(scene: Scene) -> None:
    _kill_deployment(scene, OPERATOR_NAMESPACE, "app.kubernetes.io/name=megatron-operator")


def kill_training_operator(scene: Scene) -> None:
    _kill_deployment(scene, "kubeflow", "control-plane=kubeflow-training-operator")


def _replacement(scene: Scene, uid: str) -> dict[str, object] | None:
    pod = scene.run.pod(1)
    return pod if pod is not None and pod["metadata"]["uid"] != uid else None


def _gone(scene: Scene, uid: str) -> bool:
    pod = scene.run.pod(1)
    return pod is None or pod["metadata"]["uid"] != uid


def _is_made(scene: Scene, uid: str) -> bool:
    return _replacement(scene, uid) is not None


def _runs(scene: Scene, uid: str) -> bool:
    pod = _replacement(scene, uid)
    try:
        return pod is not None and bool(scene.run.container(1).processes())
    except ClusterError:
        return False


def _has_ranks(scene: Scene, uid: str) -> bool:
    try:
        return _runs(scene, uid) and len(scene.run.ranks(1)) == RANKS_PER_NODE
    except ClusterError:
        return False


STAGES: dict[str, Callable[[Scene, str], bool]] = {
    "when the pod is gone": _gone,
    "when its replacement is made": _is_made,
    "when its replacement runs": _runs,
    "when its ranks start": _has_ranks,
}
"""Steps of the replacement of a pod."""


def kill_during_recovery(
    kill: Callable[[Scene], None], stage: Callable[[Scene, str], bool]
) -> Callable[[Scene], Hit]:
    """Delete a pod, and kill an operator as soon as the recovery has come to `stage`."""

    def inject(scene: Scene) -> Hit:
        before = scene.run.pod(1)
        assert before is not None
        uid = before["metadata"]["uid"]
        hit = delete_pod(1)(scene)
        eventually("the recovery to come so far", lambda: stage(scene, uid) or None)
        kill(scene)
        return hit

    return inject


# Two at once.


def both(first: Callable[[Scene], Hit], second: Callable[[Scene], Hit]) -> Callable[[Scene], Hit]:
    """Two faults right after each other. What the first one hit is what must be named."""

    def inject(scene: Scene) -> Hit:
        hit = first(scene)
        second(scene)
        return hit

    return inject


rank_and_pod = both(kill_rank(0, 0), delete_pod(1))
both_pods = both(delete_pod(1), delete_pod(0))


def node_and_operator(scene: Scene) -> Hit:
    hit = lose_node(None)(scene)
    kill_operator(scene)
    return hit
