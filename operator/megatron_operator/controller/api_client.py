"""The client of the API server: objects as JSON, one error type, server-side apply."""

import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final
from urllib.parse import urlencode
from urllib.request import getproxies

import aiohttp
from kubernetes.aio import client, config

from megatron_operator.api import json_documents
from megatron_operator.api.errors import OperatorError
from megatron_operator.api.labels import FIELD_MANAGER
from megatron_operator.controller.api_resources import NODES, Resource
from megatron_operator.controller.clock import ServerClock
from megatron_operator.controller.fence import Fence, NotLeaderError
from megatron_operator.controller.metrics import API_REQUESTS, WRITES
from megatron_operator.lifecycle.object_metadata import Object

TIMEOUT: Final = 20.0
"""Seconds for one request; the work queue retries."""
WATCH_SILENCE: Final = 75.0
"""Seconds without anything from a watch after which its connection is lost: bookmarks come each minute."""
PAGE: Final = 250
"""Objects of a list that one response has: a pod takes about 10 KB, and parsing blocks the event loop."""


class ApiError(OperatorError):
    """The API server responded with an error; `message` is from its response."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message

    @classmethod
    def of(cls, code: int, content: bytes) -> "ApiError":
        """The error of a response with this code and body."""
        try:
            status = json_documents.loads(content)
        except ValueError:
            status = {"message": content[:200].decode(errors="replace")}
        return cls(code, str(status.get("reason", "")), str(status.get("message", "")))

    @property
    def not_found(self) -> bool:
        """Whether the object or its kind does not exist."""
        return self.status == 404

    @property
    def conflict(self) -> bool:
        """Whether the object has changed, or exists already."""
        return self.status == 409

    @property
    def exists(self) -> bool:
        """Whether an object of this name exists. A conflict can also be one of a ResourceQuota's counts."""
        return self.conflict and self.reason == "AlreadyExists"

    @property
    def expired(self) -> bool:
        """Whether the API server no longer has the changes since a version."""
        return self.status == 410

    @property
    def refused(self) -> bool:
        """Forbidden, invalid or not admitted: the same request fails until something else changes."""
        return self.status in (400, 403, 422) or self.webhook_failed

    @property
    def webhook_failed(self) -> bool:
        """Whether an admission webhook does not respond, as while no pod of its controller runs."""
        return self.status == 500 and "failed calling webhook" in self.message


def lacks_right(error: ApiError) -> bool:
    """Whether no role of the account allows the request; false where admission refuses it."""
    return error.status == 403 and re.search(r'cannot \w+ resource "', error.message) is not None


class WatchError(ApiError):
    """The API server ended a watch with an error: it cannot be continued from its last version."""


class ListsLimitedError(OperatorError):
    """A list was not sent because as many as the API server answers in time wait for it already."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"pods not listed: the API server answers slowly, and {waiting} lists wait for it")


EXPECTED_ERRORS: Final = (
    ApiError,
    ListsLimitedError,
    NotLeaderError,
    OSError,
    aiohttp.ClientError,
    client.ApiException,
)
"""What using the API server may raise: conflicts, refusals, time-outs, lost connections, a lost Lease, a list
that is not sent."""


class ApiClient:
    """A connection to the API server, and the clock of that server.

    With a fence it writes only while that is open, and raises NotLeaderError otherwise.
    """

    def __init__(self, api: client.ApiClient, fence: Fence | None = None) -> None:
        self._api = api
        self._fence = fence
        self.clock = ServerClock()

    @classmethod
    async def connect(cls, fence: Fence | None = None) -> "ApiClient":
        """Connect with the service account of the pod, or else with KUBECONFIG."""
        configuration = client.Configuration()
        # Where no proxy is set, do not ask two threads for one, and for a .netrc, at each request.
        configuration.client_session_kwargs = {"trust_env": bool(getproxies())}
        # Watches keep theirs, some for each namespace; no request must wait for one of them to end.
        configuration.connection_pool_maxsize = 0
        if fence is not None:
            configuration.trace_configs = [_require_before_sending(fence)]
        try:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except config.ConfigException:
            await config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        return cls(client.ApiClient(configuration=configuration), fence)

    async def close(self) -> None:
        """Close the connection."""
        await self._api.close()  # type: ignore[no-untyped-call]

    async def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """The object; None when it does not exist. This and all methods below raise ApiError."""
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
        """Objects of one namespace, or of all when it is None, by label and field selector.

        Only for lists that are known to be short; see `pages`.
        """
        pages = self.pages(resource, namespace, labels=labels, fields=fields)
        return [item async for page in pages for item in page]

    async def pages(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        labels: str | None = None,
        fields: str | None = None,
        accept: str = "application/json",
    ) -> AsyncIterator[list[Object]]:
        """As `find`, in lists of up to PAGE objects; the caller keeps of each only what it needs."""
        async for _, page in self.versioned_pages(
            resource, namespace, labels=labels, fields=fields, accept=accept
        ):
            yield page

    async def versioned_pages(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        labels: str | None = None,
        fields: str | None = None,
        accept: str = "application/json",
    ) -> AsyncIterator[tuple[str, list[Object]]]:
        """As `pages`, each with the version of the collection, from which `watch` continues."""
        path = resource.path(namespace) if namespace else resource.cluster_path()
        query = {"labelSelector": labels, "fieldSelector": fields, "limit": str(PAGE), "continue": None}
        while True:
            page = await self._request("GET", path, query, accept=accept)
            metadata = page.get("metadata") or {}
            yield str(metadata.get("resourceVersion") or ""), list(page.get("items") or [])
            query["continue"] = metadata.get("continue") or None
            if query["continue"] is None:
                return

    async def watch(
        self,
        resource: Resource,
        version: str,
        seconds: int,
        *,
        namespace: str | None = None,
        labels: str | None = None,
    ) -> AsyncIterator[Object]:
        """Changes of a collection since `version`, as watch events, for `seconds`.

        Bookmarks are among them. Raises ApiError where the request is refused, and WatchError where it ends
        with an error; either with status 410 where the version is too old.

        Args:
            resource: What is watched.
            version: Of the list, or of the event, from which on.
            seconds: After which the API server ends the request.
            namespace: None: all.
            labels: Label selector.
        """
        query = {
            "watch": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
            "allowWatchBookmarks": "true",
            "labelSelector": labels,
        }
        path = resource.path(namespace) if namespace else resource.cluster_path()
        headers = {"Accept": "application/json"}
        await self._api.update_params_for_auth(headers, [], ["BearerToken"], path, "GET", None)
        url = self._url(path, query)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT, sock_read=WATCH_SILENCE)
        response = await self._api.call_api("GET", url, headers, _request_timeout=timeout)
        API_REQUESTS.labels("GET", resource.plural, str(response.status)).inc()
        stream = response.response
        try:
            if response.status >= 400:
                raise ApiError.of(response.status, await stream.read())
            while line := await stream.content.readline():
                event = dict(json_documents.loads(line))
                if event.get("type") == "ERROR":
                    error = event.get("object") or {}
                    code, reason = int(error.get("code") or 500), str(error.get("reason") or "Unknown")
                    raise WatchError(code, reason, str(error.get("message")))
                yield event
        finally:
            stream.close()

    async def metadata(
        self, resource: Resource, namespace: str | None, *, labels: str | None = None
    ) -> list[Object]:
        """As `find`; only the metadata of the objects is transferred."""
        accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
        pages = self.pages(resource, namespace, labels=labels, accept=accept)
        return [dict(item["metadata"]) async for page in pages for item in page]

    async def node_labels(self) -> list[dict[str, str]]:
        """Labels of all nodes; only their metadata is transferred."""
        return [each.get("labels") or {} for each in await self.metadata(NODES, None)]

    async def served(self, group: str) -> dict[str, frozenset[str]]:
        """Plural names of an API group's resources by version; empty where the cluster does not have it."""
        groups = (await self._request("GET", "/apis")).get("groups") or []
        versions = (each["versions"] for each in groups if each["name"] == group)
        names = [each["version"] for found in versions for each in found]
        found = {each: await self._request("GET", f"/apis/{group}/{each}") for each in names}
        return {
            version: frozenset(each["name"] for each in answer.get("resources") or ())
            for version, answer in found.items()
        }

    async def apply(self, resource: Resource, body: Object, subresource: str | None = None) -> Object:
        """Server-side apply: fields that an earlier apply set and this one omits are removed."""
        metadata = body["metadata"]
        path = resource.path(metadata["namespace"], metadata["name"], subresource)
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._request("PATCH", path, query, body, "application/apply-patch+yaml")

    async def create(self, resource: Resource, body: Object) -> Object:
        """Create an object. Raises ApiError with status 409 when it exists."""
        path = resource.path(body["metadata"]["namespace"])
        return await self._request("POST", path, {"fieldManager": FIELD_MANAGER}, body)

    async def replace(self, resource: Resource, body: Object) -> Object:
        """Replace exactly this version of an object. Raises ApiError with status 409 when it has changed."""
        metadata = body["metadata"]
        path = resource.path(metadata["namespace"], metadata["name"])
        return await self._request("PUT", path, {"fieldManager": FIELD_MANAGER}, body)

    async def merge(self, resource: Resource, target: Object, changes: Object) -> Object:
        """JSON merge patch of exactly this version of an object; null removes a field.

        Raises ApiError with status 409 when the object has changed.
        """
        metadata = target["metadata"]
        version = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        path = resource.path(metadata["namespace"], metadata["name"])
        body = changes | {"metadata": changes.get("metadata", {}) | version}
        query = {"fieldManager": FIELD_MANAGER}
        return await self._request("PATCH", path, query, body, "application/merge-patch+json")

    async def merge_node(self, node: Object, changes: Object) -> Object:
        """JSON merge patch of exactly this version of a node; a conflict when it has changed.

        Returns the patched node.
        """
        metadata = node["metadata"]
        version = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        body = changes | {"metadata": changes.get("metadata", {}) | version}
        path, query = f"{NODES.cluster_path()}/{metadata['name']}", {"fieldManager": FIELD_MANAGER}
        return await self._request("PATCH", path, query, body, "application/merge-patch+json")

    async def delete(
        self,
        resource: Resource,
        target: Object,
        grace_seconds: int | None = None,
        *,
        same_version: bool = False,
        foreground: bool = False,
    ) -> None:
        """Delete the object with this UID, with `same_version` only if it has not changed since it was read.

        With `foreground` it is gone only once the objects that it owns are. Does nothing when it no longer
        exists.
        """
        metadata = target["metadata"]
        kept = ("uid", "resourceVersion") if same_version else ("uid",)
        options: Object = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "propagationPolicy": "Foreground" if foreground else "Background",
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
        plural, code = _plural(path), "none"
        if method != "GET":
            WRITES.labels(method, plural).inc()
        url, fence = self._url(path, query), None if method == "GET" else self._fence
        try:
            async with contextlib.nullcontext() if fence is None else fence.writing():
                response = await self._api.call_api(method, url, headers, body, _request_timeout=TIMEOUT)
                code = str(response.status)
                self.clock.synchronize(response.headers.get("Date"))
                content = await response.read()  # type: ignore[no-untyped-call]
        except TimeoutError as error:
            raise TimeoutError(f"{method} {path}: no answer in time") from error
        finally:
            API_REQUESTS.labels(method, plural, code).inc()
        if response.status < 400:
            return dict(json_documents.loads(content)) if content else {}
        raise ApiError.of(response.status, content)

    def _url(self, path: str, query: Mapping[str, str | None] | None) -> str:
        given = {key: value for key, value in (query or {}).items() if value is not None}
        return str(self._api.configuration.host) + path + (f"?{urlencode(given)}" if given else "")


def _require_before_sending(fence: Fence) -> aiohttp.TraceConfig:
    """Check the fence again just before the bytes leave.

    Meanwhile a connection was made, or aiohttp has repeated the request on a new one because the old one
    had been closed, which may take as long as the process was frozen.
    """

    async def require(_session: Any, _context: Any, params: aiohttp.TraceRequestHeadersSentParams) -> None:
        if params.method != "GET":
            fence.require()

    trace = aiohttp.TraceConfig()
    trace.on_request_headers_sent.append(require)
    return trace


def _plural(path: str) -> str:
    """`pods` of `/api/v1/namespaces/default/pods/x`, `jobs` of `/apis/batch/v1/jobs`, `apis` of `/apis`."""
    parts = path.strip("/").split("/")
    parts = parts[2 if parts[0] == "api" else 3 :] or parts[:1]
    return parts[2] if parts[0] == "namespaces" and len(parts) > 2 else parts[0]
