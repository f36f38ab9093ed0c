"""The operator's clock jumps in the middle of a recovery.

A container has no wall clock of its own that could be set. What jumps is `time.time` of the operator's
process, the only way in which the operator reads the time of day.
"""

import json
import re
import time
from pathlib import Path

from localcluster.faults import Container
from megatron_operator.api.times import seconds

from testkit.faults.injections import FaultContext, InjectedFault, Injection, delete_pod
from testkit.installation import OPERATOR_NAMESPACE
from testkit.waiting import wait_until
from testkit.watched_run import WatchedRun

HOUR = 3600.0
DEPLOYMENT = "deployment/megatron-operator"
SELECTOR = "app.kubernetes.io/name=megatron-operator"
AHEAD = "tmp/seconds-ahead"
"""Relative to the operator's root: the offset of its clock in seconds; 0 where the file is missing."""
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
NAME = "adjustable-clock"
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


def jump(ahead: float) -> Injection:
    """Delete a pod, set the operator's clock `ahead` by seconds, and wait for the recovery in the status.

    The clock is correct again when the row is over, which is a second jump.
    """

    def inject(context: FaultContext[WatchedRun]) -> InjectedFault:
        run = context.run
        _make_clock_adjustable(context)
        before = run.settled()
        fault = delete_pod(1)(context)
        _set_offset(context, ahead)
        wait_until("the operator to log its clock offset", lambda: _offset_logged(context, ahead))

        def recovered_at() -> str | None:
            run.require_alive()
            found = run.recovered_incidents(before.incidents)
            return found[-1]["time"] if found else None

        reported = seconds(wait_until("the operator to report the recovery", recovered_at))
        assert reported is not None
        assert abs(reported - time.time()) < HOUR / 2, "the time is the operator's, not the cluster's"
        return fault

    return inject


def _make_clock_adjustable(context: FaultContext[WatchedRun]) -> None:
    """Restart the operator with an adjustable clock; undone when the row is over."""
    context.run.api.apply(MODULES)
    context.undo.callback(context.run.api.delete, "ConfigMap", OPERATOR_NAMESPACE, NAME)
    _kubectl(context, "patch", DEPLOYMENT, "--patch", json.dumps(PATCH))
    context.undo.callback(_roll_back, context)
    _await_rollout(context)


def _roll_back(context: FaultContext[WatchedRun]) -> None:
    _kubectl(context, "rollout", "undo", DEPLOYMENT)
    _await_rollout(context)


def _await_rollout(context: FaultContext[WatchedRun]) -> None:
    _kubectl(context, "rollout", "status", DEPLOYMENT, "--timeout=120s")


def _kubectl(context: FaultContext[WatchedRun], *arguments: str) -> str:
    return context.kubectl.run("-n", OPERATOR_NAMESPACE, *arguments)


def _offset_logged(context: FaultContext[WatchedRun], ahead: float) -> bool:
    """Whether the operator has logged this clock offset, to 10 s."""
    log = _kubectl(context, "logs", "--selector", SELECTOR, "--tail=-1")
    seen = re.findall(r"the local clock is (-?\d+) s ahead", log)
    return any(abs(int(each) - ahead) < 10 for each in seen)


def _set_offset(context: FaultContext[WatchedRun], ahead: float) -> None:
    """All processes of the operator use it from their next reading of the clock on."""
    for pod in context.run.api.list("Pod", OPERATOR_NAMESPACE, labelSelector=SELECTOR):
        for state in pod["status"]["containerStatuses"]:
            pid = Container(state["containerID"]).first.pid
            file = Path(f"/proc/{pid}/root/{AHEAD}")
            new = file.with_suffix(".new")
            new.write_text(str(ahead))
            new.rename(file)
