"""A second scheduler of Kubernetes with its feature gates for gangs, for tests of gang scheduling.

API server and controller manager of the control-plane profile serve its PodGroups always.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from localcluster.controlplane import ControlPlane
from localcluster.kubectl import Object

NAME = "kubernetes-gangs"
"""Of the process; its `schedulerName` too."""
_GATES = "--feature-gates=GenericWorkload=true,GangScheduling=true"


class KubernetesGangScheduler:
    """The scheduler as a host process of the control-plane profile."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane

    def configuration(self) -> Object:
        """Of kube-scheduler, with a profile of this name instead of `default-scheduler`."""
        kubeconfig = str(self.plane.component_kubeconfig("kube-scheduler"))
        return {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": kubeconfig, "qps": 1000, "burst": 1000},
            "profiles": [{"schedulerName": NAME}],
        }

    def argv(self) -> list[str | Path]:
        """The command line; it serves no port."""
        path = self.plane.paths.home / f"{NAME}.json"
        path.write_text(json.dumps(self.configuration()))
        return [self.plane.paths.binary("kube-scheduler"), f"--config={path}", "--secure-port=0", _GATES]

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        """Run it for the duration of the block; yields its `schedulerName`."""
        self.plane.processes.start(NAME, self.argv())
        try:
            yield NAME
        finally:
            self.plane.processes.kill(NAME)
