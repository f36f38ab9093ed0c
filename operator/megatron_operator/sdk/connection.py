"""The connection to a cluster: the operator's API client with a user's credentials, watches and logs."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlencode

import aiohttp
import yaml
from kubernetes.aio import client, config
from megatron_contract.environment import CONTAINER_NAME

from megatron_operator.api import json_documents
from megatron_operator.api.labels import STORED_API_VERSION
from megatron_operator.controller.api_client import PAGE, ApiClient, ApiError
from megatron_operator.controller.api_resources import PODS, RECIPES
from megatron_operator.sdk.errors import ClusterUnreachableError

Object = dict[str, Any]
FIELD_MANAGER: Final = "megatron-sdk"
"""Owner of the fields that are set through the SDK."""
WATCH_SECONDS: Final = 240
"""After this the API server ends a watch, and the object is read again."""
SILENCE: Final = WATCH_SECONDS + 30.0
"""Seconds without a byte after which a watch counts as lost."""
KEEPALIVE: Final = {"TCP_KEEPIDLE": 60, "TCP_KEEPALIVE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""When TCP asks a silent peer, in seconds, and how often; macOS has TCP_KEEPALIVE for TCP_KEEPIDLE."""
RETRY_DELAYS: Final = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Seconds before each attempt to restore a watch; after the last one the error is raised."""
SHORT_WATCH: Final = 1.0
"""Seconds: after a watch that was shorter, this long a pause, so that a server is not asked without end."""
_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_MALFORMED: Final = (yaml.YAMLError, TypeError, KeyError, AttributeError, ValueError)
"""What the client raises for a file that is not a kubeconfig, an empty one included."""
_LOST: Final = (OSError, aiohttp.ClientError)


class SdkClient(ApiClient):
    """The API client with another field manager, and with responses that are read line by line."""

    @property
    def server(self) -> str:
        """URL of the API server."""
        return str(self._api.configuration.host)

    async def apply_recipe(self, body: Object, manager: str, *, force: bool) -> Object:
        """Server-side apply; without `force` a conflict where another manager owns a field."""
        metadata = body["metadata"]
        query = {"fieldManager": manager, "force": "true" if force else "false"}
        path = RECIPES.path(metadata["namespace"], metadata["name"])
        # The version that the operator writes too: STORED_VERSION has the reason.
        stored = {**body, "apiVersion": STORED_API_VERSION}
        return await self._request("PATCH", path, query, stored, "application/apply-patch+yaml")

    async def patch_spec(self, recipe: Object, spec: Object, manager: str) -> Object:
        """JSON merge patch of a recipe's spec; refused (422) where another recipe has its name."""
        metadata, query = recipe["metadata"], {"fieldManager": manager}
        path = RECIPES.path(metadata["namespace"], metadata["name"])
        patch = {"metadata": {"uid": metadata["uid"]}, "spec": spec}
        return await self._request("PATCH", path, query, patch, "application/merge-patch+json")

    async def recipes_named(self, namespace: str, name: str) -> Object:
        """The list of the recipe of this name, whose resourceVersion a watch can start at."""
        query = {"fieldSelector": f"metadata.name={name}"}
        return await self._request("GET", RECIPES.path(namespace), query)

    async def list_recipes(self, namespace: str | None) -> tuple[list[Object], str]:
        """Recipes of a namespace, or of all, and the resourceVersion at which a watch of them can start."""
        path = RECIPES.path(namespace) if namespace else RECIPES.cluster_path()
        query: dict[str, str | None] = {"limit": str(PAGE), "continue": None}
        found: list[Object] = []
        while True:
            page = await self._request("GET", path, query)
            found += page.get("items") or []
            query["continue"] = page["metadata"].get("continue") or None
            if query["continue"] is None:
                return found, str(page["metadata"]["resourceVersion"])

    async def review(self, group: str, kind: str, spec: Object) -> Object:
        """The status of a review, such as a TokenReview: created, never stored. Raises ApiError."""
        body = {"apiVersion": f"{group}/v1", "kind": kind, "spec": spec}
        answer = await self._request("POST", f"/apis/{group}/v1/{kind.lower()}s", {}, body)
        return dict(answer.get("status") or {})

    async def lines(
        self, path: str, query: Mapping[str, str], silence: float | None
    ) -> AsyncGenerator[bytes]:
        """Lines of a response as they arrive, without their ends. Raises ApiError.

        `silence`: seconds without a byte after which the connection is lost; None: once TCP finds no peer.
        """
        headers = {"Accept": "*/*"}
        await self._api.update_params_for_auth(headers, [], ["BearerToken"], path, "GET", None)
        url = f"{self._api.configuration.host}{path}?{urlencode(query)}"
        patience = aiohttp.ClientTimeout(total=None, sock_connect=20.0, sock_read=silence)
        received = await self._api.call_api("GET", url, headers, _request_timeout=patience)
        response: aiohttp.ClientResponse = received.response
        try:
            if response.status >= 400:
                raise ApiError.of(response.status, await response.read())
            if silence is None:
                _keep_alive(response)
            rest = b""
            async for chunk in response.content.iter_any():
                *complete, rest = (rest + chunk).split(b"\n")
                for line in complete:
                    yield line
            if rest:
                yield rest
        finally:
            response.close()


class AsyncConnection:
    """A cluster and a namespace, for AsyncRun. It connects at the first request; close it at the end.

    As in kubectl, the cluster is that of $KUBECONFIG or ~/.kube/config, else that of the pod, and the
    namespace that of the context.

        async with AsyncConnection(namespace="research") as connection:
            run = await AsyncRun.get("llama3-8b", connection)
    """

    def __init__(
        self,
        *,
        namespace: str | None = None,
        context: str | None = None,
        kubeconfig: str | Path | None = None,
    ) -> None:
        self._given = namespace
        self._context = context
        self._kubeconfig = kubeconfig
        self._connecting = asyncio.Lock()
        self._client: SdkClient | None = None
        self._default = "default"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def namespace(self) -> str:
        """The namespace of runs that name none."""
        async with self.client():
            return self._given or self._default

    @asynccontextmanager
    async def client(self) -> AsyncIterator[SdkClient]:
        """The client, connected. Raises ClusterUnreachableError where a connection fails within the block."""
        try:
            async with self._connecting:
                if self._client is None:
                    self._client = await self._connect()
            yield self._client
        except _LOST as error:
            raise ClusterUnreachableError(
                f"the API server does not respond: {error or type(error)}"
            ) from error

    async def _connect(self) -> SdkClient:
        configuration = client.Configuration()
        asked = self._kubeconfig or os.environ.get("KUBECONFIG")
        file = asked or Path("~/.kube/config").expanduser()
        fix = "set KUBECONFIG, or give kubeconfig and context"
        try:
            if asked or self._context or Path(file).exists():
                loader = await config.load_kube_config(  # type: ignore[no-untyped-call]
                    str(file), self._context, configuration
                )
                configuration.refresh_api_key_hook = partial(_renew_token, loader)  # type: ignore[assignment]
                self._default = loader.current_context["context"].get("namespace") or "default"
            else:
                config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
                self._default = _NAMESPACE_FILE.read_text().strip()
        except (config.ConfigException, OSError) as error:
            message = f"no cluster is configured ({file}): {str(error).rstrip('.')}; {fix}"
            raise ClusterUnreachableError(message) from None
        except _MALFORMED:
            message = f"no cluster is configured: {file} is not a valid kubeconfig; {fix}"
            raise ClusterUnreachableError(message) from None
        return SdkClient(client.ApiClient(configuration=configuration))

    async def changes(self, namespace: str, name: str) -> AsyncGenerator[Object | None]:
        """The recipe now and after each change; None, and the end, when it does not exist.

        A server that is overloaded, or fails (429, 5xx), counts as a lost connection. Raises ApiError, and
        ClusterUnreachableError when a lost watch cannot be restored.
        """
        failures = 0
        while True:
            try:
                async with self.client() as api:
                    found = await api.recipes_named(namespace, name)
                # The server responds. One failure stays, so that watches that end at once are not hurried.
                failures = min(failures, 1)
                for item in found["items"] or (None,):
                    yield item
                if not found["items"]:
                    return
                began = time.monotonic()
                async with aclosing(self._watch(namespace, name, found)) as events:
                    async for item in events:
                        failures = 0
                        yield item
                        if item is None:
                            return
                failures = 0
                await pause_after_watch(began)
            except (ClusterUnreachableError, ApiError) as error:
                if failures >= len(RETRY_DELAYS) or not _is_temporary(error):
                    raise
                await asyncio.sleep(RETRY_DELAYS[failures])
                failures += 1

    async def _watch(self, namespace: str, name: str, found: Object) -> AsyncGenerator[Object | None]:
        """Changes since a list, until the API server ends the watch."""
        query = {
            "watch": "true",
            "fieldSelector": f"metadata.name={name}",
            "resourceVersion": found["metadata"]["resourceVersion"],
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        path = RECIPES.path(namespace)
        async with self.client() as api, aclosing(api.lines(path, query, SILENCE)) as lines:
            async for line in lines:
                event = watch_event(line)
                if event is None:
                    return
                if event["type"] == "DELETED":
                    yield None
                elif event["type"] in ("ADDED", "MODIFIED"):
                    yield event["object"]

    async def log(
        self,
        namespace: str,
        pod: str,
        *,
        previous: bool = False,
        follow: bool = False,
        tail: int | None = None,
        since: str | None = None,
        limit_bytes: int | None = None,
        timestamps: bool = False,
    ) -> AsyncGenerator[str]:
        """Lines of a trainer pod's log: the last `tail` ones, at most `limit_bytes`, counted from the first.

        `since`: RFC 3339; only lines from then on.
        Raises ApiError, and ClusterUnreachableError where the connection fails.
        """
        flags = {"previous": previous, "follow": follow, "timestamps": timestamps}
        query = {"container": CONTAINER_NAME} | {key: "true" for key, on in flags.items() if on}
        limits = {"tailLines": tail, "sinceTime": since, "limitBytes": limit_bytes}
        query |= {key: str(limit) for key, limit in limits.items() if limit is not None}
        path = PODS.path(namespace, pod, "log")
        # A trainer may be silent for any time; a watch is not, since the API server ends it.
        silence = None if follow else SILENCE
        async with self.client() as api, aclosing(api.lines(path, query, silence)) as lines:
            async for line in lines:
                yield line.decode(errors="replace")


def watch_event(line: bytes) -> Object | None:
    """The event of a line of a watch; None where the version is too old, and must be listed again.

    Raises ApiError of every other error, and ClusterUnreachableError where the line is not complete.
    """
    try:
        event: Object = json_documents.loads(line)
    except ValueError:
        raise ClusterUnreachableError("the connection to the API server was lost within an event") from None
    if event["type"] != "ERROR":
        return event
    status = event["object"]
    code = int(status.get("code") or 500)
    if code == 410:
        return None
    raise ApiError(code, str(status.get("reason")), str(status.get("message")))


async def pause_after_watch(began: float) -> None:
    """Wait after a watch that ended as soon as it began, in monotonic seconds."""
    if time.monotonic() - began < SHORT_WATCH:
        await asyncio.sleep(SHORT_WATCH)


def _is_temporary(error: ClusterUnreachableError | ApiError) -> bool:
    """Whether the same request may succeed later, with nothing else changed."""
    return not isinstance(error, ApiError) or error.status == 429 or error.status >= 500


def _keep_alive(response: aiohttp.ClientResponse) -> None:
    """Have TCP ask for the peer of a response while it is silent."""
    transport = response.connection and response.connection.transport
    if transport is None:  # the response has arrived as a whole
        return
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def _renew_token(loader: Any, configuration: client.Configuration) -> None:
    """Run a credential plugin again once its token has expired."""
    if hasattr(loader, "exec_plugin_expiry"):
        await loader.load_from_exec_plugin()
        configuration.api_key["BearerToken"] = loader.token
