"""Kubeflow Trainer's controller with its webhooks, from the manifests in its Go module, for tests."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from localcluster.binaries import Binaries
from localcluster.console import Console
from localcluster.controlplane import ControlPlane
from localcluster.hostcontrollers import certificates, delete_all, rights, wait_established
from localcluster.kubectl import Kubectl, Object
from localcluster.pki import Authority, Certificate
from localcluster.ports import free_port
from localcluster.processes import http_ok, wait_until
from localcluster.trainingoperator import CERTIFICATE_DIRECTORY

MODULE = "github.com/kubeflow/trainer/v2"
NAME = "kubeflow-trainer"
"""Of the program and its process."""
NAMESPACE = "kubeflow-system"
RESOURCES = tuple(
    f"{plural}.trainer.kubeflow.org"
    for plural in ("trainjobs", "trainingruntimes", "clustertrainingruntimes")
)
_USER = "kubeflow-trainer-controller-manager"
_SECRET = "kubeflow-trainer-webhook-cert"


def at(url: str, webhook_configuration: Object) -> Object:
    """The webhooks at `url`, a host process, instead of behind a Service; Trainer itself adds its CA."""
    webhooks = [
        each | {"clientConfig": {"url": url + each["clientConfig"]["service"]["path"]}}
        for each in webhook_configuration["webhooks"]
    ]
    return webhook_configuration | {"webhooks": webhooks}


class KubeflowTrainer:
    """The controller as a host process, with either profile; JobSet's must run beside it."""

    def __init__(self, plane: ControlPlane, kubectl: Kubectl, binaries: Binaries) -> None:
        self.plane = plane
        self.kubectl = kubectl
        self.binaries = binaries
        self.directory = plane.paths.home / NAME
        # It keeps an existing pair whose CA and server names are as it expects.
        self.authority = Authority(self.directory / "pki", "kubeflow-trainer-ca", rsa=True)
        self._health, self._port = free_port(), free_port()
        self._placed: list[Path] = []
        """Files outside the profile's folder that it has created."""

    def up(self, console: Console) -> None:
        """Build it, install its resources and webhooks, and start it. Raises ClusterError."""
        self.binaries.build((NAME,), console)
        base = self.binaries.module_directory(NAME, MODULE) / "manifests" / "base"
        self.kubectl.apply(self.kubectl.kustomize(base / "crds"))
        for resource in RESOURCES:
            wait_established(self.kubectl, resource)
        [role] = [each for each in self.kubectl.kustomize(base / "rbac") if each["kind"] == "ClusterRole"]
        [webhooks] = self.kubectl.kustomize(base / "webhook")
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        self.kubectl.apply([namespace, *rights(_USER, role)])
        self.kubectl.apply([self._certificates(), at(f"https://127.0.0.1:{self._port}", webhooks)])
        self.start()

    def down(self) -> None:
        """Stop it, and delete its resources with all objects, so that the cluster does not know them."""
        self.plane.processes.kill(NAME)
        self._remove_placed()
        name = "validator.trainer.kubeflow.org"
        self.kubectl.run("delete", "validatingwebhookconfiguration", name, "--ignore-not-found")
        # Runtimes have a finalizer that only the process removes.
        for kind in ("trainjobs", "trainingruntimes"):
            delete_all(self.kubectl, f"{kind}.trainer.kubeflow.org")
        self.kubectl.run("delete", "crd", *RESOURCES, "--ignore-not-found", "--timeout=60s")

    def _remove_placed(self) -> None:
        """Delete what it has created outside the profile's folder, which nothing reads after a start."""
        for path in self._placed:
            path.unlink(missing_ok=True)
        for folder in (CERTIFICATE_DIRECTORY, CERTIFICATE_DIRECTORY.parent):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _certificates(self) -> Object:
        """The Secret of its webhooks' certificates, for its Service and for this process."""
        self.authority.create()
        hosts = (f"{_USER}.{NAMESPACE}.svc", "127.0.0.1")
        self.authority.sign(Certificate("tls", NAME, hosts=hosts))
        return certificates(self.authority, _SECRET, NAMESPACE)

    def start(self) -> None:
        """Start the process, also after it was killed, and wait until it is ready. Raises ClusterError."""
        self.plane.authority.sign(Certificate(_USER, _USER))
        kubeconfig = self.plane.component_kubeconfig(NAME)
        self.plane.authority.kubeconfig(_USER, self.plane.server, kubeconfig)
        arguments: list[str | Path] = [
            self.plane.paths.binary(NAME),
            f"--health-probe-bind-address=127.0.0.1:{self._health}",
            f"--webhook-server-port={self._port}",
        ]
        environment = {"KUBECONFIG": str(kubeconfig), "TMPDIR": str(self._temporary())}
        self.plane.processes.start(NAME, arguments, environment)
        wait_until(
            lambda: http_ok(f"http://127.0.0.1:{self._health}/readyz"),
            60,
            "Kubeflow Trainer ready",
            lambda: self.plane.processes.running(NAME),
        )

    def _temporary(self) -> Path:
        """The directory in which the webhook server reads its certificates.

        The certificate rotator only checks that a file exists at a path that the training-operator's has too.
        """
        temporary = self.directory / "tmp"
        mounted = temporary / "k8s-webhook-server" / "serving-certs"
        for directory in (mounted, CERTIFICATE_DIRECTORY):
            directory.mkdir(parents=True, exist_ok=True)
            for name in ("tls.crt", "tls.key"):
                target = directory / name
                if directory is not mounted and not target.exists():
                    self._placed.append(target)
                if directory is mounted or not target.exists():
                    shutil.copy(self.authority.directory / name, target)
        return temporary
