"""The API server as this operator uses it: plain dicts, one error type, server-side apply."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from kubernetes.aio import client, config

from megatron_operator.api.errors import OperatorError
from megatron_operator.api.labels import FIELD_MANAGER, GROUP, PLURAL, VERSION
from megatron_operator.controller.clock import ServerClock
from megatron_operator.controller.process_metrics import WRITES
from megatron_operator.manifests import pytorchjob

Object = dict[str, Any]
TIMEOUT: Final = 20.0
"""Seconds for one request; the work queue tries again."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object, as its path names it."""

    group: str
    version: str
    plural: str

    def path(self, namespace: str, name: str | None = None, subresource: str | None = None) -> str:
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root, "namespaces", namespace, self.plural, name, subresource]
        return "/".join(part for part in parts if part)

    def path_everywhere(self) -> str:
        return f"/apis/{self.group}/{self.version}/{self.plural}" if self.group else f"/api/v1/{self.plural}"


RECIPES: Final = Resource(GROUP, VERSION, PLURAL)
JOBS: Final = Resource(pytorchjob.GROUP, pytorchjob.VERSION, pytorchjob.PLURAL)
BATCH_JOBS: Final = Resource("batch", "v1", "jobs")
PODS: Final = Resource("", "v1", "pods")
CLAIMS: Final = Resource("", "v1", "persistentvolumeclaims")
CONFIG_MAPS: Final = Resource("", "v1", "configmaps")
EVENTS: Final = Resource("", "v1", "events")
NODES: Final = Resource("", "v1", "nodes")


class ApiError(OperatorError):
    """The API server answered with an error. `message` is its own word."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def not_found(self) -> bool:
        return self.status == 404

    @property
    def conflict(self) -> bool:
        return self.status == 409

    @property
    def refused(self) -> bool:
        """Forbidden or invalid: trying the same again changes nothing until somebody else acts."""
        return self.status in (400, 403, 422)


class Cluster:
    """One connection to the API server, and its time."""

    def __init__(self, api: client.ApiClient) -> None:
        self._api = api
        self.clock = ServerClock()

    @classmethod
    async def connect(cls) -> "Cluster":
        """With the service account of the pod, else with KUBECONFIG."""
        configuration = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except config.ConfigException:
            await config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        return cls(client.ApiClient(configuration=configuration))

    async def close(self) -> None:
        await self._api.close()  # type: ignore[no-untyped-call]

    async def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        try:
            return await self._request("GET", resource.path(namespace, name))
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def find(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        labels: str | None = None,
        fields: str | None = None,
    ) -> list[Object]:
        """Objects of one namespace, or of all."""
        query = {"labelSelector": labels, "fieldSelector": fields}
        path = resource.path(namespace) if namespace else resource.path_everywhere()
        return list((await self._request("GET", path, query)).get("items") or [])

    async def node_labels(self) -> list[dict[str, str]]:
        """Labels of all nodes; their metadata alone is sent."""
        accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
        nodes = (await self._request("GET", "/api/v1/nodes", accept=accept)).get("items") or []
        return [node["metadata"].get("labels") or {} for node in nodes]

    async def apply(self, resource: Resource, body: Object, subresource: str | None = None) -> Object:
        """Server-side apply: fields that we set before and leave out now are taken away."""
        metadata = body["metadata"]
        path = resource.path(metadata["namespace"], metadata["name"], subresource)
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._request("PATCH", path, query, body, "application/apply-patch+yaml")

    async def create(self, resource: Resource, body: Object) -> Object:
        path = resource.path(body["metadata"]["namespace"])
        return await self._request("POST", path, {"fieldManager": FIELD_MANAGER}, body)

    async def merge(self, resource: Resource, target: Object, changes: Object) -> Object:
        """Merge changes into this very version of an object; null takes a field away."""
        metadata = target["metadata"]
        version = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        path = resource.path(metadata["namespace"], metadata["name"])
        body = changes | {"metadata": version}
        query = {"fieldManager": FIELD_MANAGER}
        return await self._request("PATCH", path, query, body, "application/merge-patch+json")

    async def cordon(self, node: str) -> None:
        """Have the scheduler place nothing more on a node."""
        path, body = f"{NODES.path_everywhere()}/{node}", {"spec": {"unschedulable": True}}
        await self._request(
            "PATCH", path, {"fieldManager": FIELD_MANAGER}, body, "application/merge-patch+json"
        )

    async def delete(
        self,
        resource: Resource,
        target: Object,
        grace_seconds: int | None = None,
        *,
        same_version: bool = False,
    ) -> None:
        """Delete this very object, with `same_version` only as it was seen: one that came later stays."""
        metadata = target["metadata"]
        kept = ("uid", "resourceVersion") if same_version else ("uid",)
        options: Object = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "propagationPolicy": "Background",
            "preconditions": {name: metadata[name] for name in kept},
        }
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        try:
            await self._request("DELETE", resource.path(metadata["namespace"], metadata["name"]), {}, options)
        except ApiError as error:
            if not (error.not_found or error.conflict):
                raise

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | None] | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Object:
        headers = {"Accept": accept, "Content-Type": content_type}
        await self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        if method != "GET":
            WRITES.labels(method, _plural(path)).inc()
        given = {key: value for key, value in (query or {}).items() if value is not None}
        url = self._api.configuration.host + path + (f"?{urlencode(given)}" if given else "")
        response = await self._api.call_api(method, url, headers, body, _request_timeout=TIMEOUT)
        self.clock.heard(response.headers.get("Date"))
        content = await response.read()  # type: ignore[no-untyped-call]
        if response.status < 400:
            return dict(json.loads(content)) if content else {}
        try:
            said = json.loads(content)
        except ValueError:
            said = {"message": content[:200].decode(errors="replace")}
        raise ApiError(response.status, str(said.get("reason", "")), str(said.get("message", "")))


def _plural(path: str) -> str:
    """`pods` of `/api/v1/namespaces/default/pods/x`, `nodes` of `/api/v1/nodes/x`."""
    inside = path.split("/namespaces/")
    return inside[-1].split("/")[1] if len(inside) > 1 else path.removeprefix("/api/v1/").split("/")[0]
