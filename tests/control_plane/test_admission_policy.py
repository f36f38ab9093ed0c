"""What the API server refuses to the operator's account although its role would allow it."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from megatron_contract.environment import CONTAINER_NAME
from megatron_operator.api.labels import LABEL_RECIPE

from testkit.api_server import Api, Object
from testkit.errors import ApiError
from testkit.operator_process import write_kubeconfig
from testkit.waiting import wait_until
from tests.control_plane.gateway import Gateway
from tests.control_plane.run_backend import CHOSEN

POD_TEMPLATE: Object = {
    "spec": {
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "registry.example/image"}],
    }
}


def job(namespace: str, name: str, labels: dict[str, str] | None = None) -> Object:
    """A batch Job that is suspended, so that it has no pods."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": labels or {LABEL_RECIPE: "run"}},
        "spec": {"suspend": True, "template": deepcopy(POD_TEMPLATE)},
    }


def training_job(namespace: str, name: str) -> Object:
    """What has the pod templates of a training job, so that it has no pods."""
    metadata = {"name": name, "namespace": namespace, "labels": {LABEL_RECIPE: "run"}}
    template = deepcopy(POD_TEMPLATE)
    template["spec"]["containers"][0]["name"] = CONTAINER_NAME
    return CHOSEN.suspended(metadata, template)


def refused(action: Callable[[], Any], message: str) -> None:
    """The action is forbidden with this message."""
    with pytest.raises(ApiError) as error:
        action()
    assert error.value.status == 403
    assert message in str(error.value)


@pytest.fixture
def namespace(api: Api) -> Iterator[str]:
    name = "admission-policy"
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    for each in api.list("Job", name):
        api.delete("Job", name, each["metadata"]["name"], propagationPolicy="Background")
    for kind in CHOSEN.kinds:
        for each in api.list(kind, name):
            api.delete(kind, name, each["metadata"]["name"], propagationPolicy="Background")


@pytest.fixture
def operator_account(installed: str, gateway: Gateway, tmp_path: Path) -> Api:
    """A client with the rights of the operator's account, outside of any pod."""
    write_kubeconfig(tmp_path / "operator", gateway.url, installed)
    return Api(tmp_path / "operator")


def test_the_operator_creates_only_objects_of_recipes(operator_account: Api, namespace: str) -> None:
    foreign = job(namespace, "foreign", {"app": "other"})
    # The API server compiles a policy a moment after it was created.
    wait_until("the policy", lambda: _is_refused(lambda: operator_account.create(foreign, dryRun="All")))
    refused(lambda: operator_account.create(foreign), f"only objects with the label {LABEL_RECIPE}")
    operator_account.create(job(namespace, "ours"))


def _is_refused(action: Callable[[], Any]) -> bool:
    try:
        action()
    except ApiError:
        return True
    return False


def test_the_operator_deletes_only_objects_of_recipes(
    api: Api, operator_account: Api, namespace: str
) -> None:
    api.create(job(namespace, "foreign", {"app": "other"}))
    refused(lambda: operator_account.delete("Job", namespace, "foreign"), "change and delete only objects")
    assert api.find("Job", namespace, "foreign") is not None


def test_the_operator_deletes_no_claim(api: Api, operator_account: Api, namespace: str) -> None:
    kind, name = "PersistentVolumeClaim", "checkpoints"
    claim = {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace, "labels": {LABEL_RECIPE: "run"}},
        "spec": {
            "storageClassName": "no-such-class",
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    operator_account.create(claim)
    wait_until(
        "the policy",
        lambda: _is_refused(lambda: operator_account.delete(kind, namespace, name, dryRun=["All"])),
    )
    refused(lambda: operator_account.delete(kind, namespace, name), "may delete no claims")
    assert "deletionTimestamp" not in api.get(kind, namespace, name)["metadata"]
    api.delete(kind, namespace, name)


def test_the_operator_creates_no_pod_with_a_service_account_token(
    operator_account: Api, namespace: str
) -> None:
    message = "automountServiceAccountToken false"
    for value in (True, None):
        body, training = job(namespace, "token"), training_job(namespace, "token")
        for template in (body["spec"]["template"], *CHOSEN.manifests.templates(training)):
            template["spec"].pop("automountServiceAccountToken")
            if value is not None:
                template["spec"]["automountServiceAccountToken"] = value
        refused(lambda body=body: operator_account.create(body), message)  # type: ignore[misc]
        refused(lambda body=training: operator_account.create(body), message)  # type: ignore[misc]
    operator_account.create(training_job(namespace, "ours"))


def secret(namespace: str, name: str, kind: str = "Opaque", **metadata: Any) -> Object:
    """A Secret with the recipe's label unless `metadata` has others."""
    identity = {"name": name, "namespace": namespace, "labels": {LABEL_RECIPE: "run"}}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": identity | metadata, "type": kind}


def test_the_operator_creates_secrets_of_recipes_and_cannot_read_any(
    api: Api, operator_account: Api, namespace: str
) -> None:
    foreign = secret(namespace, "foreign", labels={"app": "other"})
    wait_until("the policy", lambda: _is_refused(lambda: operator_account.create(foreign, dryRun="All")))
    refused(lambda: operator_account.create(foreign), f"only objects with the label {LABEL_RECIPE}")
    account = {"kubernetes.io/service-account.name": "default"}
    token = secret(namespace, "token", "kubernetes.io/service-account-token", annotations=account)
    refused(lambda: operator_account.create(token), "only Secrets of type Opaque")
    operator_account.create(secret(namespace, "ours"))
    for action in (
        lambda: operator_account.find("Secret", namespace, "ours"),
        lambda: operator_account.list("Secret", namespace),
        lambda: operator_account.delete("Secret", namespace, "ours"),
    ):
        refused(action, "cannot")
    api.delete("Secret", namespace, "ours")


def test_others_are_not_restricted(api: Api, namespace: str) -> None:
    body = job(namespace, "theirs", {"app": "other"})
    del body["spec"]["template"]["spec"]["automountServiceAccountToken"]
    api.create(body)
    api.delete("Job", namespace, "theirs", propagationPolicy="Background")
