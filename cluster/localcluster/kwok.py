"""KWOK simulates the kubelets of fake nodes by rules (Stage objects) that tests may change.

Only nodes with the annotation `kwok.x-k8s.io/node: fake` are simulated; tests create them. Stages are objects
in the API server, so `kubectl apply` of a Stage changes the life cycle of pods while the cluster runs.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path

from localcluster.binaries import Binaries
from localcluster.console import Console
from localcluster.controlplane import ControlPlane
from localcluster.errors import ClusterError
from localcluster.kubectl import Kubectl, Object

MODULE = "sigs.k8s.io/kwok"
NAME = "kwok"
STAGES = "stages.kwok.x-k8s.io"
NODE_ANNOTATION = "kwok.x-k8s.io/node=fake"
COMPLETE = "pod-complete"
"""The stage that lets pods of Jobs succeed soon after they have started."""
DELETE = "pod-delete"
"""The stage that removes pods that are being deleted, as a kubelet does whose containers have ended."""
BEING_DELETED = {
    "key": ".metadata | select(.deletionGracePeriodSeconds > 0) | .deletionTimestamp",
    "operator": "Exists",
}
"""What that stage is for. Without a grace period the API server removes a pod itself: KWOK, which deletes by
name, would delete the next of its name, and then the next of that one."""
CONFIGURATION = {
    "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
    "kind": "KwokConfiguration",
    # By default 4 of each, which renew 40 leases a second, those of 400 nodes, where an answer takes 0.1 s.
    "options": {"nodeLeaseParallelism": 32, "nodePlayStageParallelism": 32, "podPlayStageParallelism": 32},
}
"""What has no flag."""
ENDED_BY_TESTS = "megatron.training/node-check"
"""Label of pods of Jobs that KWOK does not complete: the checks of nodes, which may pass or fail."""


def manifests(binaries: Binaries, kubectl: Kubectl) -> tuple[list[Object], list[Object]]:
    """The CustomResourceDefinition of stages, and the stages, from kwok's Go module."""
    source = binaries.module_directory(NAME, MODULE) / "kustomize"
    resources = kubectl.kustomize(source / "crd")
    definitions = [item for item in resources if item["metadata"]["name"] == STAGES]
    return definitions, adapted(kubectl.kustomize(source / "stage" / "fast"), ENDED_BY_TESTS)


def adapted(stages: Sequence[Object], label: str) -> list[Object]:
    """These stages, of which none completes pods with the label, or deletes those that go by themselves.

    Raises ClusterError without COMPLETE or DELETE.
    """
    changed = copy.deepcopy(list(stages))
    selectors = {stage["metadata"]["name"]: stage["spec"]["selector"] for stage in changed}
    for name in (COMPLETE, DELETE):
        if name not in selectors:
            known = ", ".join(selectors)
            raise ClusterError(f"KWOK has no stage {name!r}, only: {known}. Adapt localcluster/kwok.py to it")
    unlabelled = {"key": f'.metadata.labels["{label}"]', "operator": "DoesNotExist"}
    selectors[COMPLETE]["matchExpressions"].append(unlabelled)
    selectors[DELETE]["matchExpressions"] = [BEING_DELETED]
    return changed


class Kwok:
    """The kwok controller as a host process."""

    def __init__(self, plane: ControlPlane, kubectl: Kubectl) -> None:
        self.plane = plane
        self.kubectl = kubectl

    @property
    def configuration(self) -> Path:
        """The file that `start` writes."""
        return self.plane.paths.home / "kwok.json"

    def argv(self) -> list[str | Path]:
        """The command line."""
        return [
            self.plane.paths.binary(NAME),
            f"--config={self.configuration}",
            f"--kubeconfig={self.plane.paths.kubeconfig}",
            f"--manage-nodes-with-annotation-selector={NODE_ANNOTATION}",
            "--enable-crds=Stage",
            # Without leases heartbeats are too rare for the node controller, and nodes flap. A lease is
            # renewed every quarter of its duration; the rest of the grace period is a margin.
            f"--node-lease-duration-seconds={self.plane.heartbeats.lease}",
            "--node-ip=127.0.0.1",
            f"--node-port={self.plane.ports.kwok}",
            f"--server-address=127.0.0.1:{self.plane.ports.kwok}",
        ]

    def up(self, resources: Sequence[Object], stages: Sequence[Object], console: Console) -> None:
        """Install the CRD and the stages, and start kwok. Raises ClusterError."""
        with console.step("kwok, with its fast stages"):
            self.kubectl.apply(resources)
            self.kubectl.run("wait", "--for=condition=Established", "--timeout=30s", "crd", STAGES)
            self.kubectl.apply(stages)
            self.start()

    def start(self) -> None:
        """Start kwok, unless it is running."""
        self.configuration.write_text(json.dumps(CONFIGURATION))
        self.plane.processes.start(NAME, self.argv())
