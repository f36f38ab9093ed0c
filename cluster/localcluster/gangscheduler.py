"""A second scheduler with the plugin Coscheduling of scheduler-plugins, for tests of gang scheduling.

The training-operator creates PodGroups while it runs with this scheduler's name.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from localcluster import trainingoperator
from localcluster.binaries import Binaries
from localcluster.console import Console
from localcluster.controlplane import ControlPlane
from localcluster.kubectl import Kubectl, Object

MODULE = "sigs.k8s.io/scheduler-plugins"
NAME = "scheduler-plugins"
"""Of the program and its process."""
SCHEDULER = "scheduler-plugins-scheduler"
"""Its `schedulerName`."""
POD_GROUPS = "podgroups.scheduling.x-k8s.io"
_USER = "system:kube-scheduler"
# The plugin may reject all pods of a group at once ("rejection in Unreserve"); no later event moves them, so
# they wait until the scheduler tries again what it refused. Its default is 5 minutes.
_RETRY = "--pod-max-in-unschedulable-pods-duration=10s"


class GangScheduler:
    """The scheduler as a host process of the control-plane profile."""

    def __init__(self, plane: ControlPlane, kubectl: Kubectl, binaries: Binaries) -> None:
        self.plane = plane
        self.kubectl = kubectl
        self.binaries = binaries

    def configuration(self) -> Object:
        """As in manifests/coscheduling/scheduler-config.yaml of the module, under a name of its own."""
        return {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {
                "kubeconfig": str(self.plane.component_kubeconfig("kube-scheduler")),
                "qps": 1000,
                "burst": 1000,
            },
            "profiles": [
                {
                    "schedulerName": SCHEDULER,
                    "plugins": {
                        "multiPoint": {"enabled": [{"name": "Coscheduling"}]},
                        "queueSort": {"enabled": [{"name": "Coscheduling"}], "disabled": [{"name": "*"}]},
                    },
                    "pluginConfig": [{"name": "Coscheduling", "args": {"permitWaitingTimeSeconds": 10}}],
                }
            ],
        }

    def argv(self) -> list[str | Path]:
        """The command line; it serves no port."""
        path = self.plane.paths.home / "gang-scheduler.json"
        path.write_text(json.dumps(self.configuration()))
        return [self.plane.paths.binary(NAME), f"--config={path}", "--secure-port=0", _RETRY]

    def rights(self) -> list[Object]:
        """What the scheduler may do beyond Kubernetes' own: read PodGroups."""
        role = {"name": NAME}
        return [
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRole",
                "metadata": role,
                "rules": [
                    {
                        "apiGroups": ["scheduling.x-k8s.io"],
                        "resources": ["podgroups"],
                        "verbs": ["get", "list", "watch"],
                    }
                ],
            },
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": role,
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", **role},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": _USER}],
            },
        ]

    def up(self, console: Console) -> None:
        """Build it, install the PodGroup resource, and start it. Raises ClusterError."""
        self.binaries.build((NAME,), console)
        module = self.binaries.module_directory(NAME, MODULE)
        crd = module / "manifests" / "coscheduling" / "crd.yaml"
        self.kubectl.run("apply", "--server-side", "-f", str(crd))
        self.kubectl.run("wait", "--for=condition=Established", "--timeout=30s", "crd", POD_GROUPS)
        self.kubectl.apply(self.rights())
        self.plane.processes.start(NAME, self.argv())

    @contextlib.contextmanager
    def serving(self, console: Console, *, pod_groups: bool = True) -> Iterator[None]:
        """Run it for the duration of the block, with a training-operator that creates PodGroups (or none)."""
        operator = trainingoperator.HostTrainingOperator(self.plane, self.kubectl)
        self.up(console)
        if pod_groups:
            self.plane.processes.kill(trainingoperator.NAME)
            operator.start(f"--gang-scheduler-name={SCHEDULER}")
        try:
            yield
        finally:
            self.plane.processes.kill(NAME)
            if pod_groups:
                self.plane.processes.kill(trainingoperator.NAME)
                operator.start()
