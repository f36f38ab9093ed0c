"""The cluster as a whole: which parts a profile has, in which order they come and go."""

from __future__ import annotations

import shutil
from pathlib import Path

from localcluster.binaries import BY_PROFILE, Binaries
from localcluster.controlplane import COMPONENTS, ControlPlane, choose_ports
from localcluster.errors import ClusterError
from localcluster.kubectl import Kubectl
from localcluster.kwok import Kwok
from localcluster.layout import Layout
from localcluster.processes import Processes
from localcluster.report import Report
from localcluster.trainingoperator import HostTrainingOperator

CONTROL_PLANE_PORTS = range(26400, 27400, 20)


class Cluster:
    """One profile's cluster of this checkout.

    `up` and `down` are idempotent; `component_stop` and `component_start` break and mend one process.
    All methods raise ClusterError, whose text names the mend.
    """

    def __init__(self, profile: str = "full", quiet: bool = False) -> None:
        self.layout = Layout(profile)
        self.report = Report(quiet)
        self.processes = Processes(self.layout.home)
        self.binaries = Binaries(self.layout)
        self.kubectl = Kubectl(self.layout)

    @property
    def profile(self) -> str:
        return self.layout.profile

    @property
    def kubeconfig(self) -> Path:
        return self.layout.kubeconfig

    @property
    def server(self) -> str:
        return self._plane().server

    def _plane(self) -> ControlPlane:
        ports = choose_ports(self.layout.home / "ports.json", "127.0.0.1", CONTROL_PLANE_PORTS)
        return ControlPlane(self.layout, self.processes, "127.0.0.1", ports)

    def up(self) -> None:
        self.binaries.build(BY_PROFILE[self.profile], self.report)
        plane = self._plane()
        plane.prepare()
        plane.up(self.report)
        HostTrainingOperator(plane, self.kubectl).up(self.binaries, self.report)
        Kwok(plane, self.kubectl).up(self.binaries, self.report)

    def down(self) -> None:
        """End every process and delete the profile's state. Caches stay."""
        self.processes.kill_all()
        HostTrainingOperator(self._plane(), self.kubectl).remove_certificates()
        shutil.rmtree(self.layout.home, ignore_errors=True)

    def status(self) -> dict[str, bool]:
        """Each recorded process, and whether it runs."""
        return {name: self.processes.running(name) for name in self.processes.names()}

    def component_stop(self, name: str) -> None:
        """End one control-plane process, as a crash of it would."""
        self._known(name)
        self.processes.kill(name)

    def component_start(self, name: str) -> None:
        """Start it again with the same command line; for the API server, wait until it is ready."""
        self._known(name)
        plane = self._plane()
        plane.start(name)
        if name in ("etcd", "kube-apiserver"):
            plane.wait_ready()

    def _known(self, name: str) -> None:
        if name not in COMPONENTS:
            raise ClusterError(f"component {name!r} is unknown; one of: {', '.join(COMPONENTS)}")
