"""The API server as tests use it: synchronous, with all rights."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from kubernetes import config

Object = dict[str, Any]

_PATHS = {
    "MegatronRecipe": "/apis/megatron.training/v1alpha1/{ns}/megatronrecipes",
    "PyTorchJob": "/apis/kubeflow.org/v1/{ns}/pytorchjobs",
    "Job": "/apis/batch/v1/{ns}/jobs",
    "Pod": "/api/v1/{ns}/pods",
    "Service": "/api/v1/{ns}/services",
    "PersistentVolumeClaim": "/api/v1/{ns}/persistentvolumeclaims",
    "ConfigMap": "/api/v1/{ns}/configmaps",
    "Event": "/api/v1/{ns}/events",
    "ResourceQuota": "/api/v1/{ns}/resourcequotas",
    "ServiceAccount": "/api/v1/{ns}/serviceaccounts",
    "Role": "/apis/rbac.authorization.k8s.io/v1/{ns}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/{ns}/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "Namespace": "/api/v1/namespaces",
    "Node": "/api/v1/nodes",
    "Lease": "/apis/coordination.k8s.io/v1/{ns}/leases",
    "PersistentVolume": "/api/v1/persistentvolumes",
    "Stage": "/apis/kwok.x-k8s.io/v1alpha1/stages",
}


class ApiError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """Objects as plain dicts."""

    def __init__(self, kubeconfig: Path) -> None:
        self._client = config.new_client_from_config(config_file=str(kubeconfig))
        self.server = str(self._client.configuration.host)
        self.ca_file = str(self._client.configuration.ssl_ca_cert)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        **query: str,
    ) -> Any:
        url = self.server + path + (f"?{urlencode(query)}" if query else "")
        response = self._client.rest_client.pool_manager.request(
            method,
            url,
            body=None if body is None else json.dumps(body),
            headers={"Content-Type": content_type, "Accept": "application/json"},
            timeout=30,
            retries=False,
        )
        content = json.loads(response.data or b"{}") if response.data[:1] in (b"{", b"") else {}
        if response.status >= 400:
            raise ApiError(response.status, str(content.get("message", response.data[:300])))
        return content

    def path(self, kind: str, namespace: str | None = None, name: str | None = None) -> str:
        path = _PATHS[kind].format(ns=f"namespaces/{namespace}" if namespace else "").replace("//", "/")
        return f"{path}/{name}" if name else path

    def find(self, kind: str, namespace: str | None, name: str) -> Object | None:
        try:
            return dict(self.request("GET", self.path(kind, namespace, name)))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def get(self, kind: str, namespace: str | None, name: str) -> Object:
        found = self.find(kind, namespace, name)
        assert found is not None, f"{kind} {namespace}/{name} does not exist"
        return found

    def list(self, kind: str, namespace: str | None = None, **query: str) -> list[Object]:
        return list(self.request("GET", self.path(kind, namespace), **query)["items"])

    def apply(self, body: Object, manager: str = "tests", **query: str) -> Object:
        metadata = body["metadata"]
        path = self.path(body["kind"], metadata.get("namespace"), metadata["name"])
        return dict(
            self.request(
                "PATCH",
                path,
                body,
                "application/apply-patch+yaml",
                fieldManager=manager,
                force="true",
                **query,
            )
        )

    def create(self, body: Object, **query: str) -> Object:
        path = self.path(body["kind"], body["metadata"].get("namespace"))
        return dict(self.request("POST", path, body, **query))

    def patch(
        self, kind: str, namespace: str | None, name: str, body: Object, subresource: str = ""
    ) -> Object:
        path = self.path(kind, namespace, name) + (f"/{subresource}" if subresource else "")
        return dict(self.request("PATCH", path, body, "application/merge-patch+json"))

    def delete(self, kind: str, namespace: str | None, name: str, **options: Any) -> None:
        try:
            self.request("DELETE", self.path(kind, namespace, name), options or None)
        except ApiError as error:
            if error.status != 404:
                raise


def eventually[T](look: Callable[[], T], what: str | Callable[[], str], seconds: float = 120) -> T:
    """The first truthy answer of `look`; fails with its last answer when none comes in time."""
    deadline = time.monotonic() + seconds
    while True:
        answer = look()
        if answer:
            return answer
        if time.monotonic() > deadline:
            said = what if isinstance(what, str) else what()
            raise AssertionError(f"after {seconds:.0f} s still not: {said}; last: {answer!r}")
        time.sleep(0.1)
