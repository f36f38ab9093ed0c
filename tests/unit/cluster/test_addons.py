"""Upstream manifests, and what the local cluster changes in them."""

import copy
import json
from base64 import b64decode
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from cryptography import x509
from localcluster import addons, kueue, kwok, storage, trainingoperator
from localcluster.addresses import SYSTEM_NODE
from localcluster.errors import ClusterError
from localcluster.paths import Paths
from megatron_operator.api.labels import LABEL_NODE_CHECK


def overlay() -> list[dict[str, Any]]:
    """The shape of the training-operator's overlay."""
    container = {"name": "training-operator", "image": "stock", "volumeMounts": [], "readinessProbe": {}}
    return [
        {"kind": "CustomResourceDefinition", "spec": {"names": {"kind": "PyTorchJob"}}},
        {"kind": "CustomResourceDefinition", "spec": {"names": {"kind": "MPIJob"}}},
        {"kind": "ClusterRole", "metadata": {"name": "training-operator"}},
        {"kind": "Service", "metadata": {"name": "training-operator"}},
        {
            "kind": "ValidatingWebhookConfiguration",
            "webhooks": [{"name": "a", "rules": [{"resources": ["x"]}]}],
        },
        {"kind": "Deployment", "spec": {"template": {"spec": {"containers": [container], "volumes": []}}}},
    ]


def deployment(objects: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = next(item for item in objects if item["kind"] == "Deployment")
    return found["spec"]["template"]["spec"]  # type: ignore[no-any-return]


def test_the_in_cluster_deployment_has_the_local_image_and_flags() -> None:
    pod = deployment(trainingoperator.in_cluster(overlay(), "ours:1", "init:1", {"node": "a"}))
    container = pod["containers"][0]
    assert container["image"] == "ours:1"
    assert "--pytorch-init-container-image=init:1" in container["args"]
    assert "--kube-api-qps=1000" in container["args"]
    assert pod["nodeSelector"] == {"node": "a"}


def test_the_upstream_objects_are_not_modified() -> None:
    stock = overlay()
    before = copy.deepcopy(stock)
    trainingoperator.in_cluster(stock, "ours:1", "init:1", {})
    trainingoperator.without_workload(stock)
    assert stock == before


def test_the_host_process_has_no_webhook_rules() -> None:
    objects = trainingoperator.without_workload(overlay())
    assert {item["kind"] for item in objects}.isdisjoint({"Deployment", "Service"})
    webhooks = next(item for item in objects if item["kind"] == "ValidatingWebhookConfiguration")
    assert all(webhook["rules"] == [] for webhook in webhooks["webhooks"])


def test_only_the_enabled_kind_of_job_is_installed() -> None:
    objects = trainingoperator.only_pytorchjob(overlay())
    kinds = [item["spec"]["names"]["kind"] for item in objects if item["kind"] == "CustomResourceDefinition"]
    assert kinds == ["PyTorchJob"]
    assert len(objects) == len(overlay()) - 1


def test_workers_may_start_under_pod_security_restricted() -> None:
    text = trainingoperator.INIT_CONTAINER.read_text()
    for variable in ("InitContainerImage", "MaxTries", "MasterAddr"):
        text = text.replace("{{." + variable + "}}", "1")
    (container,) = yaml.safe_load(text)
    security = container["securityContext"]
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["runAsNonRoot"] is True
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}


@pytest.fixture
def provisioner() -> list[dict[str, Any]]:
    helper = "spec:\n  containers:\n  - name: helper-pod\n    image: busybox\n"
    pod = {"containers": [{"image": "stock", "command": []}]}
    return [
        {"kind": "Deployment", "spec": {"template": {"spec": pod}}},
        {"kind": "StorageClass", "metadata": {"name": "local-path"}},
        {"kind": "ConfigMap", "data": {"config.json": "{}", "helperPod.yaml": helper}},
    ]


def test_the_storage_class_is_shared_and_the_default(provisioner: list[dict[str, Any]]) -> None:
    _, storage_class, config = storage.adapt(provisioner, "/shared")
    assert storage_class["metadata"]["name"] == "local-shared"
    annotations = storage_class["metadata"]["annotations"]
    assert annotations["storageclass.kubernetes.io/is-default-class"] == "true"
    assert json.loads(config["data"]["config.json"])["sharedFileSystemPath"] == "/shared"


def test_all_images_come_from_the_local_registry(provisioner: list[dict[str, Any]]) -> None:
    workload, _, config = storage.adapt(provisioner, "/shared")
    assert deployment([workload])["containers"][0]["image"].startswith("registry.local/")
    assert "busybox" not in config["data"]["helperPod.yaml"]


def test_the_training_operator_finds_existing_certificates(tmp_path: Path) -> None:
    certificates = trainingoperator.WebhookCertificates(tmp_path)
    certificates.create()
    secret = {"kind": "Secret", "metadata": {"name": trainingoperator.WEBHOOK_SECRET}}
    (filled,) = certificates.fill([secret])
    assert set(filled["data"]) == {"ca.crt", "ca.key", "tls.crt", "tls.key"}
    # Its rotator accepts the CA's key only as PKCS#1; with another format it never becomes ready.
    assert b64decode(filled["data"]["ca.key"]).startswith(b"-----BEGIN RSA PRIVATE KEY-----")


@pytest.mark.parametrize(
    ("file", "name"),
    [("ca.crt", "training-operator-ca"), ("tls.crt", "training-operator.kubeflow.svc")],
)
def test_webhook_certificates_have_the_names_that_it_expects(tmp_path: Path, file: str, name: str) -> None:
    certificates = trainingoperator.WebhookCertificates(tmp_path)
    certificates.create()
    certificate = x509.load_pem_x509_certificate(certificates.files()[file].read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [name]


def webhook(group: str, resource: str) -> dict[str, Any]:
    service = {"name": "webhook-service", "namespace": "system", "path": f"/mutate-{resource}"}
    rules = [{"apiGroups": [group], "resources": [resource]}]
    return {"name": resource, "clientConfig": {"service": service}, "rules": rules}


def test_only_webhooks_of_queues_and_of_the_kinds_of_job_that_kueue_manages_are_called() -> None:
    all_of_them = [
        webhook("kueue.x-k8s.io", "workloads"),
        webhook("kubeflow.org", "pytorchjobs"),
        webhook("jobset.x-k8s.io", "jobsets"),
        webhook("ray.io", "rayjobs"),
        webhook("", "pods"),
    ]
    document = {"metadata": {"name": "mutating-webhook-configuration"}, "webhooks": all_of_them}
    made = kueue.at("https://127.0.0.1:1", document)
    assert made["metadata"]["name"] == "kueue-mutating-webhook-configuration"
    assert [each["clientConfig"]["url"] for each in made["webhooks"]] == [
        "https://127.0.0.1:1/mutate-workloads",
        "https://127.0.0.1:1/mutate-pytorchjobs",
        "https://127.0.0.1:1/mutate-jobsets",
    ]


def stage(name: str) -> dict[str, Any]:
    """The shape of one of KWOK's stages."""
    deleted = {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"}
    return {"metadata": {"name": name}, "spec": {"selector": {"matchExpressions": [deleted]}}}


class KwokModule:
    """KWOK's Go module, with these stages."""

    def __init__(self, *stages: str) -> None:
        self.stages = stages

    def module_directory(self, _name: str, _module: str) -> Path:
        return Path("/kwok")

    def kustomize(self, directory: Path) -> list[dict[str, Any]]:
        if directory == Path("/kwok/kustomize/crd"):
            return [{"metadata": {"name": kwok.STAGES}}, {"metadata": {"name": "attaches.kwok.x-k8s.io"}}]
        return [stage(name) for name in self.stages]


def kwok_manifests(*stages: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    module: Any = KwokModule(*stages)
    return kwok.manifests(module, module)


def test_kwok_leaves_the_checks_of_nodes_and_pods_that_the_api_server_removes_alone() -> None:
    definitions, stages = kwok_manifests("pod-ready", "pod-complete", "pod-delete")
    assert [each["metadata"]["name"] for each in definitions] == [kwok.STAGES]
    ready, complete, delete = (each["spec"]["selector"]["matchExpressions"] for each in stages)
    upstream = stage("x")["spec"]["selector"]["matchExpressions"]
    assert (ready, delete) == (upstream, [kwok.BEING_DELETED])
    unlabelled = {"key": f'.metadata.labels["{LABEL_NODE_CHECK}"]', "operator": "DoesNotExist"}
    assert complete == [*upstream, unlabelled]


@pytest.mark.parametrize("missing", ["pod-complete", "pod-delete"])
def test_a_kwok_without_a_stage_that_is_adapted_is_refused(missing: str) -> None:
    others = [name for name in ("pod-ready", "pod-complete", "pod-delete") if name != missing]
    with pytest.raises(ClusterError, match=f"no stage '{missing}', only: {', '.join(others)}"):
        kwok_manifests(*others)


class RecordingKubectl:
    """Records what is applied and run."""

    def __init__(self) -> None:
        self.applied: list[dict[str, Any]] = []
        self.commands: list[tuple[Any, ...]] = []

    def apply(self, objects: list[dict[str, Any]]) -> None:
        self.applied += objects

    def run(self, *args: Any) -> str:
        self.commands.append(args)
        return ""


def test_the_training_operator_is_installed_on_the_system_node_and_both_addons_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "install", lambda *_: None)
    kubectl: Any = RecordingKubectl()
    plane: Any = SimpleNamespace(paths=Paths("full", tmp_path))
    binaries: Any = None
    plane.paths.pki.mkdir(parents=True)
    addons.install(plane, kubectl, binaries, overlay())
    assert deployment(kubectl.applied)["nodeSelector"] == {"kubernetes.io/hostname": SYSTEM_NODE}
    waited = [(command[:2], command[3:5]) for command in kubectl.commands]
    status = ("rollout", "status")
    assert waited == [
        (status, (trainingoperator.NAMESPACE, f"deployment/{trainingoperator.NAME}")),
        (status, (storage.NAMESPACE, "deployment/local-path-provisioner")),
    ]
