"""KWOK: plays the kubelet of nodes that do not exist, by rules (Stage objects) that tests may change.

Only nodes with the annotation `kwok.x-k8s.io/node: fake` are played; tests create them. The stages are
objects in the API server, so `kubectl apply` of a Stage changes how pods live while the cluster runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from localcluster.binaries import Binaries
from localcluster.console import Report
from localcluster.controlplane import ControlPlane
from localcluster.kubectl import Kubectl, Object

MODULE = "sigs.k8s.io/kwok"
NAME = "kwok"
STAGES = "stages.kwok.x-k8s.io"
NODE_ANNOTATION = "kwok.x-k8s.io/node=fake"


def manifests(binaries: Binaries, kubectl: Kubectl) -> tuple[list[Object], list[Object]]:
    """The custom resource for stages, and the stages, that kwok's own module carries."""
    source = binaries.module_directory(NAME, MODULE) / "kustomize"
    resources = kubectl.kustomize(source / "crd")
    wanted = [item for item in resources if item["metadata"]["name"] == STAGES]
    return wanted, kubectl.kustomize(source / "stage" / "fast")


class Kwok:
    """The kwok controller as a process of the host."""

    def __init__(self, plane: ControlPlane, kubectl: Kubectl) -> None:
        self.plane = plane
        self.kubectl = kubectl

    def argv(self) -> list[str | Path]:
        return [
            self.plane.layout.binary(NAME),
            f"--kubeconfig={self.plane.layout.kubeconfig}",
            f"--manage-nodes-with-annotation-selector={NODE_ANNOTATION}",
            "--enable-crds=Stage",
            # Without leases a node's heartbeat comes later than the node controller's patience: nodes flap.
            # Renewed every quarter of this: of the controller's 20 s, 15 are left for a busy machine.
            "--node-lease-duration-seconds=20",
            "--node-ip=127.0.0.1",
            f"--node-port={self.plane.ports.kwok}",
            f"--server-address=127.0.0.1:{self.plane.ports.kwok}",
        ]

    def up(self, resources: Sequence[Object], stages: Sequence[Object], report: Report) -> None:
        """Install the custom resources and the stages, and start it."""
        with report.step("kwok, with its fast stages"):
            self.kubectl.apply(resources)
            self.kubectl.run("wait", "--for=condition=Established", "--timeout=30s", "crd", STAGES)
            self.kubectl.apply(stages)
            self.start()

    def start(self) -> None:
        self.plane.processes.start(NAME, self.argv())
