"""JobSet's controller with its webhooks, from the manifests in its Go module, for tests of its backend."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path

import yaml

from localcluster.binaries import Binaries
from localcluster.console import Console
from localcluster.controlplane import ControlPlane
from localcluster.hostcontrollers import rights, wait_established
from localcluster.kubectl import LOADER, Kubectl, Object
from localcluster.pki import Authority, Certificate
from localcluster.ports import free_port
from localcluster.processes import http_ok, wait_until

MODULE = "sigs.k8s.io/jobset"
NAME = "jobset"
"""Of the program and its process."""
RESOURCE = "jobsets.jobset.x-k8s.io"
_USER = "jobset-controller"
_CERTIFICATE = "jobset-webhook"


def reachable_webhooks(documents: list[Object], url: str, ca: bytes) -> list[Object]:
    """The webhooks of JobSets at `url`, a host process, instead of behind a Service.

    Those of pods are left out: they are for exclusive placement, and would be called for all pods.
    """
    result = []
    for document in documents:
        kept = [each for each in document["webhooks"] if each["rules"][0]["resources"] == ["jobsets"]]
        for each in kept:
            path = each["clientConfig"]["service"]["path"]
            each["clientConfig"] = {"url": url + path, "caBundle": base64.b64encode(ca).decode()}
        name = f"{NAME}-{document['metadata']['name']}"
        result.append(document | {"metadata": {"name": name}, "webhooks": kept})
    return result


class JobSetController:
    """The controller as a host process, with either profile."""

    def __init__(self, plane: ControlPlane, kubectl: Kubectl, binaries: Binaries) -> None:
        self.plane = plane
        self.kubectl = kubectl
        self.binaries = binaries
        self.directory = plane.paths.home / NAME
        self._health, self._webhook = free_port(), free_port()

    def up(self, console: Console) -> None:
        """Build it, install its resource and webhooks, and start it. Raises ClusterError."""
        self.binaries.build((NAME,), console)
        components = self.binaries.module_directory(NAME, MODULE) / "config" / "components"
        self.kubectl.run("apply", "--server-side", "-f", components / "crd" / "bases")
        wait_established(self.kubectl, RESOURCE)
        role = yaml.load((components / "rbac" / "role.yaml").read_text(), LOADER)
        self.kubectl.apply(rights(_USER, role))
        self.start()
        self.kubectl.apply(self._webhooks(components))

    def down(self) -> None:
        """Stop it, and delete the resource with all JobSets, so that the cluster does not know them."""
        self.plane.processes.kill(NAME)
        for kind in ("mutating", "validating"):
            name = f"{NAME}-{kind}-webhook-configuration"
            self.kubectl.run("delete", f"{kind}webhookconfiguration", name, "--ignore-not-found")
        self.kubectl.run("delete", "crd", RESOURCE, "--ignore-not-found", "--timeout=60s")

    def start(self) -> None:
        """Start the process, also after it was killed, and wait until it is ready. Raises ClusterError."""
        authority = self.plane.authority
        authority.sign(Certificate(_USER, _USER))
        authority.sign(Certificate(_CERTIFICATE, _CERTIFICATE, hosts=("127.0.0.1",)))
        kubeconfig = self.plane.component_kubeconfig(NAME)
        authority.kubeconfig(_USER, self.plane.server, kubeconfig)
        arguments = self._arguments(authority)
        self.plane.processes.start(NAME, arguments, {"KUBECONFIG": str(kubeconfig)})
        wait_until(
            lambda: http_ok(f"http://127.0.0.1:{self._health}/readyz"),
            60,
            "JobSet's controller ready",
            lambda: self.plane.processes.running(NAME),
        )

    def _arguments(self, authority: Authority) -> list[str | Path]:
        certificates = self.directory / "certificates"
        certificates.mkdir(parents=True, exist_ok=True)
        shutil.copy(authority.crt(_CERTIFICATE), certificates / "tls.crt")
        shutil.copy(authority.key(_CERTIFICATE), certificates / "tls.key")
        configuration = {
            "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
            "kind": "Configuration",
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self._health}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": "127.0.0.1", "port": self._webhook, "certDir": str(certificates)},
        }
        path = self.directory / "configuration.json"
        path.write_text(json.dumps(configuration))
        return [self.plane.paths.binary(NAME), f"--config={path}"]

    def _webhooks(self, components: Path) -> list[Object]:
        text = (components / "webhook" / "manifests.yaml").read_text()
        documents = [each for each in yaml.load_all(text, LOADER) if each]
        ca = self.plane.authority.certificate.read_bytes()
        return reachable_webhooks(documents, f"https://127.0.0.1:{self._webhook}", ca)
