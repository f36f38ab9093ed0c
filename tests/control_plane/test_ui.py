"""The web page with its chart's rights, against the real TokenReview and SubjectAccessReview."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from megatron_operator.sdk import AsyncConnection
from megatron_operator.ui.access import ClusterAccess
from megatron_operator.ui.app import Settings, application
from megatron_operator.ui.published import PublishedRecipes
from megatron_operator.ui.runs import WatchedRuns
from starlette.testclient import TestClient

from testkit.api_server import Api
from testkit.operator_process import write_kubeconfig
from testkit.waiting import wait_until
from tests.control_plane.conftest import Install

OWN = f"ui-{os.getpid()}"
MINE, OTHER = f"{OWN}-mine", f"{OWN}-other"


def token(api: Api, namespace: str, account: str) -> str:
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = api.path("ServiceAccount", namespace, account) + "/token"
    return str(api.request("POST", path, request)["status"]["token"])


def bearer(value: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {value}"}


@pytest.fixture(scope="module")
def page_token(api: Api, install: Install, installed: str) -> Iterator[str]:  # noqa: ARG001
    """A token of the page's service account; recipes in two namespaces, of which `viewer` may read one."""
    for namespace in (MINE, OTHER):
        api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    values = {
        "ui": {"enabled": True},
        "watchNamespaces": [MINE, OTHER],
        "crd": {"install": False},
        "aggregateRoles": False,
        "admissionPolicy": {"enabled": False},
    }
    install(OWN, values)
    for namespace in (MINE, OTHER):
        api.apply(
            {
                "apiVersion": "megatron.training/v1alpha1",
                "kind": "MegatronRecipe",
                "metadata": {"name": "run", "namespace": namespace},
                "spec": {"recipe": "tiny-gpt", "accelerator": {"count": 4}, "data": {"mockData": True}},
            }
        )
    api.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "viewer", "namespace": MINE}}
    )
    metadata = {"name": "viewer", "namespace": MINE}
    rbac = "rbac.authorization.k8s.io"
    rule = {"apiGroups": ["megatron.training"], "resources": ["megatronrecipes"], "verbs": ["get", "list"]}
    api.apply({"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": metadata, "rules": [rule]})
    api.apply(
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "viewer"},
            "subjects": [{"kind": "ServiceAccount", "name": "viewer", "namespace": MINE}],
        }
    )
    yield token(api, OWN, "megatron-ui")
    for kind in ("ClusterRoleBinding", "ClusterRole"):
        api.delete(kind, None, f"megatron-ui-{OWN}")
    for namespace in (MINE, OTHER):
        api.delete("MegatronRecipe", namespace, "run")
    for namespace in (MINE, OTHER, OWN):
        api.delete("Namespace", None, namespace)


@pytest.fixture
def page(api: Api, page_token: str, tmp_path: Path) -> Iterator[TestClient]:
    """The page as its Deployment runs it, with the rights of its service account."""
    write_kubeconfig(tmp_path / "kubeconfig", api.server, page_token)
    text = (tmp_path / "kubeconfig").read_text()
    server = f'"server": "{api.server}"'
    trusting = text.replace(server, f'{server}, "certificate-authority": "{api.ca_file}"')
    (tmp_path / "kubeconfig").write_text(trusting)
    connection = AsyncConnection(kubeconfig=tmp_path / "kubeconfig")
    runs = WatchedRuns(connection, [MINE, OTHER])
    settings = Settings(runs, ClusterAccess(connection), PublishedRecipes(None, None))
    with TestClient(application(settings)) as client:
        assert client.portal is not None
        following = client.portal.start_task_soon(runs.follow)
        wait_until("the page to have both runs", lambda: len(runs.all()) == 2)
        yield client
        following.cancel()
        client.portal.call(connection.close)


def test_a_viewer_sees_what_the_cluster_lets_them_read_and_nothing_else(page: TestClient, api: Api) -> None:
    viewer = bearer(token(api, MINE, "viewer"))
    text = page.get("/", headers=viewer).text
    assert f"/runs/{MINE}/run" in text
    assert OTHER not in text
    assert f"system:serviceaccount:{MINE}:viewer" in text
    assert page.get(f"/runs/{MINE}/run", headers=viewer).status_code == 200
    for path in (f"/runs/{OTHER}/run", f"/runs/{OTHER}/none", f"/?namespace={OTHER}"):
        assert page.get(path, headers=viewer).status_code == 403
    assert "get pods/log" in page.get(f"/runs/{MINE}/run", headers=viewer).text, (
        "the viewer may not read logs"
    )


def test_no_token_a_wrong_one_and_one_of_another_audience_are_refused(page: TestClient, api: Api) -> None:
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": ["another-service"]},
    }
    path = api.path("ServiceAccount", MINE, "viewer") + "/token"
    other = str(api.request("POST", path, request)["status"]["token"])
    for headers in ({}, bearer("wrong"), bearer(other)):
        assert page.get(f"/runs/{MINE}/run", headers=headers).status_code == 401


def test_the_pages_own_account_can_change_nothing(api: Api, page_token: str) -> None:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": f"system:serviceaccount:{OWN}:megatron-ui"},
    }
    assert page_token
    for verb, group, resource in (
        ("patch", "megatron.training", "megatronrecipes"),
        ("delete", "", "pods"),
        ("get", "", "secrets"),
        ("get", "", "pods/log"),
    ):
        plural, _, sub = resource.partition("/")
        asked = {"verb": verb, "group": group, "resource": plural, "subresource": sub, "namespace": MINE}
        body = review | {"spec": {**review["spec"], "resourceAttributes": asked}}  # type: ignore[dict-item]
        answer = api.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
        assert answer["status"]["allowed"] is False
