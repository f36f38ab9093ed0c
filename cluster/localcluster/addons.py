"""What the full cluster runs as pods: the training-operator and the storage provisioner."""

from __future__ import annotations

from collections.abc import Sequence

from localcluster import storage, systemimages, trainingoperator
from localcluster.addresses import SYSTEM_NODE
from localcluster.binaries import Binaries
from localcluster.controlplane import ControlPlane
from localcluster.kubectl import Kubectl, Object

DEPLOYMENTS = (
    (trainingoperator.NAMESPACE, trainingoperator.NAME),
    (storage.NAMESPACE, "local-path-provisioner"),
)
"""Namespace and name."""


def install(plane: ControlPlane, kubectl: Kubectl, binaries: Binaries, stock: Sequence[Object]) -> None:
    """Install both and wait until they are available; `stock`: the training-operator's upstream manifests.

    Raises ClusterError.
    """
    certificates = trainingoperator.WebhookCertificates(plane.paths.pki / "webhook")
    certificates.create()
    place = {"kubernetes.io/hostname": SYSTEM_NODE}
    images = (systemimages.TRAINING_OPERATOR_IMAGE, systemimages.BASE_IMAGE)
    kubectl.apply(trainingoperator.in_cluster(certificates.fill(stock), *images, place))
    storage.install(plane, kubectl, binaries)
    for namespace, name in DEPLOYMENTS:
        kubectl.run("rollout", "status", "-n", namespace, f"deployment/{name}", "--timeout=120s")
