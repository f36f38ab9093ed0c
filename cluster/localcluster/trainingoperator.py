"""The Kubeflow training-operator, from the manifests in its Go module.

In the full profile it runs in the cluster, with its webhooks. The control-plane profile has no kubelet, so it
is a host process with the same role there. Without a node its webhooks cannot be reached through a Service,
so a webhook configuration of the same name has no rules.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import shutil
from collections.abc import Sequence
from pathlib import Path

from localcluster.binaries import Binaries
from localcluster.console import Console
from localcluster.controlplane import JOB_THREADS, ControlPlane
from localcluster.kubectl import Kubectl, Object
from localcluster.pki import Authority, Certificate
from localcluster.processes import http_ok, wait_until

MODULE = "github.com/kubeflow/training-operator"
NAMESPACE = "kubeflow"
NAME = "training-operator"
WEBHOOK_SECRET = "training-operator-webhook-cert"
CERTIFICATE_DIRECTORY = Path("/tmp/k8s-webhook-server/serving-certs")
"""Hard-coded in the training-operator."""
INIT_CONTAINER = Path(__file__).parent / "data" / "init-container.yaml"
FLAGS = (
    "--enable-scheme=pytorchjob",
    # With its defaults (20, 30, and 1 thread) it creates only two jobs per second.
    "--kube-api-qps=1000",
    "--kube-api-burst=1000",
)


def manifests(binaries: Binaries, kubectl: Kubectl) -> list[Object]:
    """The objects of its standalone overlay."""
    directory = binaries.module_directory("training-operator", MODULE)
    return kubectl.kustomize(directory / "manifests" / "overlays" / "standalone")


def only_pytorchjob(objects: Sequence[Object]) -> list[Object]:
    """Leave out the five other job kinds, which FLAGS switch off: 3 MB of custom resources."""
    return [
        item
        for item in objects
        if item["kind"] != "CustomResourceDefinition" or item["spec"]["names"]["kind"] == "PyTorchJob"
    ]


def without_workload(objects: Sequence[Object]) -> list[Object]:
    """For an operator that runs outside: no Deployment, no Service, webhooks that match nothing."""
    result = []
    for item in copy.deepcopy([item for item in objects if item["kind"] not in ("Deployment", "Service")]):
        if item["kind"] == "ValidatingWebhookConfiguration":
            for webhook in item["webhooks"]:
                webhook["rules"] = []
        result.append(item)
    return result


def in_cluster(
    objects: Sequence[Object], image: str, init_image: str, node_selector: dict[str, str]
) -> list[Object]:
    """The overlay with this cluster's image, flags and init container, on `node_selector`'s node."""
    template: Object = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "training-operator-init-container", "namespace": NAMESPACE},
        "data": {"initContainer.yaml": INIT_CONTAINER.read_text()},
    }
    result = copy.deepcopy(list(objects))
    for item in result:
        if item["kind"] != "Deployment":
            continue
        pod = item["spec"]["template"]["spec"]
        pod["nodeSelector"] = node_selector
        pod["volumes"].append({"name": "config", "configMap": {"name": template["metadata"]["name"]}})
        container = pod["containers"][0]
        container["image"] = image
        # The training-operator's default path of the init container template.
        container["volumeMounts"].append({"name": "config", "mountPath": "/etc/config"})
        threads = f"--controller-threads={JOB_THREADS}"
        container["args"] = [*FLAGS, threads, f"--pytorch-init-container-image={init_image}"]
        container["readinessProbe"].update(initialDelaySeconds=1, periodSeconds=2)
    return [*result, template]


class WebhookCertificates:
    """The certificates of the training-operator's webhooks, created before it starts.

    Otherwise it creates them itself and waits until the kubelet updates its volume, which takes up to 104 s
    (measured). It keeps an existing pair whose CA and server names are as it expects.
    """

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory, "training-operator-ca", rsa=True)

    def create(self) -> None:
        """Create what does not exist yet."""
        self.authority.create()
        self.authority.sign(Certificate("tls", NAME, hosts=(f"{NAME}.{NAMESPACE}.svc",)))

    def files(self) -> dict[str, Path]:
        """Files by key of the Secret."""
        authority = self.authority
        return {
            "ca.crt": authority.certificate,
            "ca.key": authority.key("ca"),
            "tls.crt": authority.crt("tls"),
            "tls.key": authority.key("tls"),
        }

    def fill(self, objects: Sequence[Object]) -> list[Object]:
        """The overlay with the certificates in its empty Secret."""
        result = copy.deepcopy(list(objects))
        for item in result:
            if item["kind"] == "Secret" and item["metadata"]["name"] == WEBHOOK_SECRET:
                item["data"] = {
                    name: base64.b64encode(path.read_bytes()).decode() for name, path in self.files().items()
                }
        return result


class HostTrainingOperator:
    """The training-operator as a host process."""

    def __init__(self, plane: ControlPlane, kubectl: Kubectl) -> None:
        self.plane = plane
        self.kubectl = kubectl
        self.certificates = WebhookCertificates(plane.paths.pki / "webhook")
        # The webhook server reads its certificates in the temporary directory.
        self.temporary = plane.paths.home / "tmp"

    def argv(self) -> list[str | Path]:
        """The command line."""
        ports = self.plane.ports
        return [
            self.plane.paths.binary(NAME),
            *FLAGS,
            f"--controller-threads={self.plane.job_threads}",
            f"--pytorch-init-container-template-file={INIT_CONTAINER}",
            f"--metrics-bind-address=127.0.0.1:{ports.training_operator_metrics}",
            f"--health-probe-bind-address=127.0.0.1:{ports.training_operator_health}",
            f"--webhook-server-port={ports.training_operator_webhook}",
        ]

    def start(self, *flags: str) -> None:
        """Start the process, with further flags, and wait until its controllers run. Raises ClusterError."""
        self._place_certificates()
        environment = {
            "KUBECONFIG": str(self.plane.component_kubeconfig(NAME)),
            "MY_POD_NAMESPACE": NAMESPACE,
            "TMPDIR": str(self.temporary),
        }
        self.plane.processes.start(NAME, [*self.argv(), *flags], environment)
        wait_until(self._ready, 60, "training-operator ready", lambda: self.plane.processes.running(NAME))

    def up(self, stock: Sequence[Object], console: Console) -> None:
        """Install its CRD, role and empty webhook from the `stock` overlay, and start it. Raises
        ClusterError."""
        with console.step("training-operator: its custom resources, then the process"):
            self.certificates.create()
            self.kubectl.apply(self.certificates.fill(without_workload(only_pytorchjob(stock))))
            self.start()

    def _place_certificates(self) -> None:
        """Place the files that a mounted Secret provides in a pod.

        The certificate rotator reads them from a hard-coded path, the webhook server from TMPDIR.
        """
        for directory in (self.temporary / "k8s-webhook-server" / "serving-certs", CERTIFICATE_DIRECTORY):
            directory.mkdir(parents=True, exist_ok=True)
            for name, path in self.certificates.files().items():
                shutil.copy(path, directory / name)

    def remove_certificates(self) -> None:
        """Delete the certificates outside the profile's folder."""
        shutil.rmtree(CERTIFICATE_DIRECTORY, ignore_errors=True)
        with contextlib.suppress(OSError):
            CERTIFICATE_DIRECTORY.parent.rmdir()

    def _ready(self) -> bool:
        return http_ok(f"http://127.0.0.1:{self.plane.ports.training_operator_health}/readyz")
