"""A cluster to work on, and the operator installed in it with its chart."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from testkit.kubectl import ROOT, Kubectl

OPERATOR_NAMESPACE = "megatron-system"
DATA_CLAIM: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
}


def connect() -> Path:
    """The kubeconfig to use: that of KUBECONFIG, else that of the local cluster, with its images loaded.

    Starting a local cluster takes minutes the first time and a second when it runs already. Raises
    CalledProcessError when it does not start.
    """
    given = os.environ.get("KUBECONFIG")
    if given:
        return Path(given).resolve()
    for command in ("up", "images"):
        subprocess.run([sys.executable, "-m", "localcluster", command], check=True, cwd=ROOT)
    return ROOT / ".cluster" / "full" / "kubeconfig"


def install_operator(kubectl: Kubectl, *files: str, backend: str | None = None) -> None:
    """Install the chart with the local cluster's values; two environment variables replace the images.

    `files` are further files of values, `backend` is `platform.jobBackend`.

    Raises CommandFailedError.
    """
    values = []
    for file in ("charts/megatron-operator/values-local-simulated.yaml", *files):
        values += ["-f", file]
    for name, value in (
        ("image", os.environ.get("MEGATRON_OPERATOR_IMAGE")),
        ("platform.image", os.environ.get("MEGATRON_TRAINER_IMAGE")),
        ("platform.jobBackend", backend),
    ):
        if value:
            values += ["--set", f"{name}={value}"]
    kubectl.helm(
        "upgrade", "--install", "megatron-operator", "charts/megatron-operator",
        "--namespace", OPERATOR_NAMESPACE, "--create-namespace", *values, "--wait", "--timeout", "3m",
    )  # fmt: skip


def uninstall_operator(kubectl: Kubectl) -> None:
    """Remove the chart's release and wait until its objects are gone. Raises CommandFailedError."""
    kubectl.helm("uninstall", "megatron-operator", "--namespace", OPERATOR_NAMESPACE, "--wait")


@contextlib.contextmanager
def installed_namespace(kubectl: Kubectl, backend: str | None = None) -> Iterator[Kubectl]:
    """The operator, the namespace and the claim for data; all of it is removed at the end."""
    install_operator(kubectl, backend=backend)
    kubectl.create_namespace()
    kubectl.apply(DATA_CLAIM)
    yield kubectl
    kubectl.run("delete", "namespace", kubectl.namespace, "--timeout=180s")
    uninstall_operator(kubectl)
