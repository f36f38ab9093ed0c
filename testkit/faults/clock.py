"""The operator's clock is set, in the middle of a recovery.

No container has a realtime clock of its own that could be set. What jumps is the operator's reading of it:
`time.time` of its process, which is the only way in which the operator asks for the time of day.
"""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

from localcluster.faults import Container
from megatron_operator.api.times import seconds

from demo.__main__ import OPERATOR_NAMESPACE
from testkit.faults.injections import Hit, Scene, delete_pod
from testkit.watched_run import WatchedRun, eventually

HOUR = 3600.0
DEPLOYMENT = "deployment/megatron-operator"
SELECTOR = "app.kubernetes.io/name=megatron-operator"
AHEAD = "tmp/seconds-ahead"
"""Below the operator's root: holds how far its clock is ahead; as long as it is missing, not at all."""
SITECUSTOMIZE = f"""\
import time

read = time.time


def ahead():
    try:
        with open("/{AHEAD}") as file:
            return float(file.read())
    except FileNotFoundError:
        return 0.0


time.time = lambda: read() + ahead()
"""
NAME = "clock-that-can-be-set"
MODULES = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": NAME, "namespace": OPERATOR_NAMESPACE},
    "data": {"sitecustomize.py": SITECUSTOMIZE},
}
PATCH = {
    "spec": {
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "operator",
                        "env": [{"name": "PYTHONPATH", "value": "/clock"}],
                        "volumeMounts": [{"name": "clock", "mountPath": "/clock", "readOnly": True}],
                    }
                ],
                "volumes": [{"name": "clock", "configMap": {"name": NAME}}],
            }
        }
    }
}


def jump(ahead: float) -> Callable[[Scene[WatchedRun]], Hit]:
    """Delete a pod, set the operator's reading of the clock by `ahead` seconds, and wait for what it tells.

    It reads the true time again when the row is over: a second jump.
    """

    def inject(scene: Scene[WatchedRun]) -> Hit:
        _let_clock_be_set(scene)
        before = scene.run.settled()
        hit = delete_pod(1)(scene)
        _set(scene, ahead)
        eventually("the operator to see that its clock is wrong", lambda: _is_seen(scene, ahead) or None)

        def told() -> str | None:
            scene.run.require_alive()
            new = scene.run.incidents(before.incidents)
            return new[-1]["time"] if new and all(each.get("recoveredAt") for each in new) else None

        at = seconds(eventually("the operator to tell that the run is back", told))
        assert at is not None
        assert abs(at - time.time()) < HOUR / 2, "it tells the time of its own clock, not the cluster's"
        return hit

    return inject


def _let_clock_be_set(scene: Scene[WatchedRun]) -> None:
    """Start the operator anew with a clock that can be set; as it was, when the row is over."""
    scene.run.api.apply(MODULES)
    scene.undo.callback(scene.run.api.delete, "ConfigMap", OPERATOR_NAMESPACE, NAME)
    _kubectl(scene, "patch", DEPLOYMENT, "--patch", json.dumps(PATCH))
    scene.undo.callback(_roll_back, scene)
    _await_rollout(scene)


def _roll_back(scene: Scene[WatchedRun]) -> None:
    _kubectl(scene, "rollout", "undo", DEPLOYMENT)
    _await_rollout(scene)


def _await_rollout(scene: Scene[WatchedRun]) -> None:
    _kubectl(scene, "rollout", "status", DEPLOYMENT, "--timeout=120s")


def _kubectl(scene: Scene[WatchedRun], *words: str) -> None:
    scene.cluster.kubectl("-n", OPERATOR_NAMESPACE, *words)


def _is_seen(scene: Scene[WatchedRun], ahead: float) -> bool:
    """By the operator's log."""
    log = scene.cluster.kubectl("-n", OPERATOR_NAMESPACE, "logs", DEPLOYMENT)
    seen = re.findall(r"the clock here is (-?\d+) s ahead", log)
    return any(abs(int(each) - ahead) < 10 for each in seen)


def _set(scene: Scene[WatchedRun], ahead: float) -> None:
    """All processes of the operator see it at their next look at the clock."""
    for pod in scene.run.api.list("Pod", OPERATOR_NAMESPACE, labelSelector=SELECTOR):
        for state in pod["status"]["containerStatuses"]:
            pid = Container(state["containerID"]).first.pid
            file = Path(f"/proc/{pid}/root/{AHEAD}")
            new = file.with_suffix(".new")
            new.write_text(str(ahead))
            new.rename(file)
