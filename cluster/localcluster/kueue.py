"""Kueue's controller with its webhooks, from the manifests in its Go module, for tests of queues."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import yaml

from localcluster.binaries import Binaries
from localcluster.console import Console
from localcluster.controlplane import ControlPlane
from localcluster.hostcontrollers import certificates, delete_all, rights, wait_established
from localcluster.kubectl import LOADER, Kubectl, Object
from localcluster.pki import Authority, Certificate
from localcluster.ports import free_port
from localcluster.processes import http_ok, wait_until

MODULE = "sigs.k8s.io/kueue"
NAME = "kueue"
"""Of the program and its process."""
NAMESPACE = "kueue-system"
GROUP = "kueue.x-k8s.io"
FRAMEWORKS = {
    "batch/job": "jobs",
    "kubeflow.org/pytorchjob": "pytorchjobs",
    "jobset.x-k8s.io/jobset": "jobsets",
    "trainer.kubeflow.org/trainjob": "trainjobs",
}
"""Kueue's name of each kind of job that it manages, and its resource. PyTorchJob is off by default."""
QUEUE_KINDS = ("localqueues", "clusterqueues", "resourceflavors", "topologies", "workloads")
"""Kinds whose objects have a finalizer that only the process removes."""
_USER = "kueue-controller-manager"
_SECRET = "kueue-webhook-server-cert"
_SERVICE = "kueue-webhook-service"


def at(url: str, document: Object) -> Object:
    """The webhooks of Kueue's own resources and of FRAMEWORKS at `url`, a host process.

    The others would be called for Pods, Deployments and kinds that Kueue does not manage here. Kueue itself
    adds its CA.
    """
    jobs = set(FRAMEWORKS.values())
    kept = [
        each | {"clientConfig": {"url": url + each["clientConfig"]["service"]["path"]}}
        for each in document["webhooks"]
        if each["rules"][0]["apiGroups"] == [GROUP] or jobs.intersection(each["rules"][0]["resources"])
    ]
    return document | {"metadata": {"name": f"{NAME}-{document['metadata']['name']}"}, "webhooks": kept}


def converted_at(url: str, definition: Object) -> Object:
    """The definition of a resource whose versions a webhook at `url` converts."""
    conversion = {
        "strategy": "Webhook",
        "webhook": {"clientConfig": {"url": f"{url}/convert"}, "conversionReviewVersions": ["v1"]},
    }
    return definition | {"spec": definition["spec"] | {"conversion": conversion}}


class KueueController:
    """The controller as a host process, with either profile."""

    def __init__(self, plane: ControlPlane, kubectl: Kubectl, binaries: Binaries) -> None:
        self.plane = plane
        self.kubectl = kubectl
        self.binaries = binaries
        self.directory = plane.paths.home / NAME
        # It keeps an existing pair whose CA and server names are as it expects.
        self.authority = Authority(self.directory / "pki", "kueue-ca", rsa=True)
        self._health, self._port = free_port(), free_port()

    def up(self, console: Console) -> None:
        """Build it, install its resources and webhooks, and start it. Raises ClusterError."""
        self.binaries.build((NAME,), console)
        components = self.binaries.module_directory(NAME, MODULE) / "config" / "components"
        definitions = self._definitions(components / "crd")
        self.kubectl.apply(definitions)
        for each in definitions:
            wait_established(self.kubectl, each["metadata"]["name"])
        role = yaml.load((components / "rbac" / "role.yaml").read_text(), LOADER)
        secrets = yaml.load((components / "rbac" / "manager_secrets_role.yaml").read_text(), LOADER)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        allowed = role | {"rules": [*role["rules"], *secrets["rules"]]}
        self.kubectl.apply([namespace, *rights(_USER, allowed)])
        self.kubectl.apply([self._certificates(), *self._webhooks(components / "webhook")])
        self.start()

    def down(self) -> None:
        """Stop it, and delete its resources with all objects, so that the cluster does not know them."""
        self.plane.processes.kill(NAME)
        for kind in ("mutating", "validating"):
            name = f"{NAME}-{kind}-webhook-configuration"
            self.kubectl.run("delete", f"{kind}webhookconfiguration", name, "--ignore-not-found")
        for kind in QUEUE_KINDS:
            delete_all(self.kubectl, f"{kind}.{GROUP}")
        names = [f"{each}.{GROUP}" for each in self._installed()]
        if names:
            self.kubectl.run("delete", "crd", *names, "--ignore-not-found", "--timeout=60s")

    def start(self) -> None:
        """Start the process, also after it was killed, and wait until it is ready. Raises ClusterError."""
        self.plane.authority.sign(Certificate(_USER, _USER))
        kubeconfig = self.plane.component_kubeconfig(NAME)
        self.plane.authority.kubeconfig(_USER, self.plane.server, kubeconfig)
        arguments: list[str | Path] = [self.plane.paths.binary(NAME), f"--config={self._configuration()}"]
        self.plane.processes.start(NAME, arguments, {"KUBECONFIG": str(kubeconfig)})
        wait_until(
            lambda: http_ok(f"http://127.0.0.1:{self._health}/readyz"),
            120,
            "Kueue ready",
            lambda: self.plane.processes.running(NAME),
        )

    def _configuration(self) -> Path:
        """Its configuration file: leader election, metrics and what no test needs is off."""
        folder = self.directory / "certificates"
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("tls.crt", "tls.key"):
            shutil.copy(self.authority.directory / name, folder / name)
        configuration = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": NAMESPACE,
            "leaderElection": {"leaderElect": False},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self._health}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": "127.0.0.1", "port": self._port, "certDir": str(folder)},
            "internalCertManagement": {
                "enable": True,
                "webhookServiceName": _SERVICE,
                "webhookSecretName": _SECRET,
            },
            "integrations": {"frameworks": list(FRAMEWORKS)},
            "featureGates": {"VisibilityOnDemand": False, "MultiKueue": False},
        }
        path = self.directory / "configuration.json"
        path.write_text(json.dumps(configuration))
        return path

    def _definitions(self, folder: Path) -> list[Object]:
        """Its resources; those that its manifests give a conversion webhook have it at this process."""
        with_webhook = {path.stem.removeprefix("webhook_in_") for path in folder.glob("patches/webhook_in_*")}
        # Its kustomization leaves this one out.
        with_webhook.discard("resourceflavors")
        definitions = [yaml.load(path.read_text(), LOADER) for path in sorted(folder.glob("bases/*.yaml"))]
        url = f"https://127.0.0.1:{self._port}"
        return [
            converted_at(url, each) if each["spec"]["names"]["plural"] in with_webhook else each
            for each in definitions
        ]

    def _webhooks(self, folder: Path) -> list[Object]:
        documents = yaml.load_all((folder / "manifests.yaml").read_text(), LOADER)
        url = f"https://127.0.0.1:{self._port}"
        return [at(url, each) for each in documents if each]

    def _certificates(self) -> Object:
        """The Secret of its webhooks' certificates, for its Service and for this process."""
        self.authority.create()
        hosts = (f"{_SERVICE}.{NAMESPACE}.svc", "127.0.0.1")
        self.authority.sign(Certificate("tls", NAME, hosts=hosts))
        return certificates(self.authority, _SECRET, NAMESPACE)

    def _installed(self) -> list[str]:
        """Plural names of the resources of its API group that the cluster has."""
        items = self.kubectl.get("crd")["items"]
        return [each["spec"]["names"]["plural"] for each in items if each["spec"]["group"] == GROUP]
