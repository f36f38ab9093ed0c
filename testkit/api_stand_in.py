"""An API server over HTTP with recipes, pods, Events, logs and reviews, as far as SDK and page use it.

Server-side apply is reduced to: whoever applied last owns the spec. tests/control_plane has the real one.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from megatron_operator.sdk.event_loop import EventLoopThread

Object = dict[str, Any]
CREATED = "2026-01-01T10:00:00Z"
_TIMED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ")
RECIPES = "/apis/megatron.training/v1alpha1/namespaces/{namespace}/megatronrecipes"


class ApiStandIn:
    """Serves on a thread of its own; its methods may be called from any other."""

    def __init__(self) -> None:
        self._thread = EventLoopThread()
        self._version = 100
        self._history: list[tuple[int, str, Object]] = []
        """Version, type and object of every change."""
        self._changed = asyncio.Condition()
        self._watch_ends = 0
        """Number of times that all watches were ended."""
        self.recipes: dict[tuple[str, str], Object] = {}
        self.pods: list[Object] = []
        self.events: list[Object] = []
        self.logs: dict[tuple[str, bool], str] = {}
        """(pod, whether of the previous container) -> its log. A line without a time has CREATED."""
        self.running_pods: set[str] = set()
        """Those whose log goes on for who follows it, until `end_containers`."""
        self.tokens: dict[str, Object] = {}
        """Token -> the user of a TokenReview."""
        self.rights: set[tuple[str, str, str, str]] = set()
        """(user, verb, resource with its subresource, namespace) that SubjectAccessReviews allow."""
        self.lost_logs: set[tuple[str, bool]] = set()
        """Those that the kubelet does not have any more."""
        self.refusal = ""
        """Why a merge patch of a recipe is invalid; empty where it is not."""
        self.silent_pods: set[str] = set()
        """Those whose node does not answer when their log is asked for."""
        self.forbids_logs = False
        """Whether the connection may not read logs."""
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        """Method, path and query of each."""
        self._abort = False
        """Whether the watches were ended by breaking their connections."""
        self.first_status: Object = {}
        """The status that a recipe gets when it is created."""
        self.aborting = False
        """Whether the connection of every list and watch is broken."""
        self.broken_watches = 0
        """How many of the next watches lose their connection at once."""
        self.expired = False
        """Whether the next watch is refused because its version is too old."""
        self.failing: list[int] = []
        """Statuses with which the next lists and watches are refused."""
        self.watched: list[bytes] = []
        """All that each of the next watches has, before it ends."""
        self.url = ""

    @contextmanager
    def running(self) -> Iterator["ApiStandIn"]:
        """Serve for the duration of a block."""
        runner = self._thread.call(self._start())
        yield self
        self._thread.call(self._stop(runner))
        self._thread.stop()

    def write_kubeconfig(self, path: Path) -> None:
        """Write a kubeconfig whose context has the namespace `research`."""
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "research"}}],
            "current-context": "x",
        }
        path.write_text(json.dumps(content))

    def set_status(self, name: str, namespace: str = "research", **status: Any) -> None:
        """Replace fields of a recipe's status, as the operator does."""
        self._thread.call(self._update_status(namespace, name, status))

    def remove(self, name: str, namespace: str = "research") -> None:
        """Delete a recipe."""
        self._thread.call(self._remove(namespace, name))

    def end_watches(self, *, abort: bool = False) -> None:
        """End all open watches, as the API server does at its time limit, or break their connections."""
        self._thread.call(self._end_watches(abort=abort))

    def end_containers(self) -> None:
        """End the containers of the running pods, and with them their logs."""
        self._thread.call(self._end_containers())

    def wait_for_watch(self, number: int) -> None:
        """Wait until this many watches have been opened."""
        self._thread.call(self._wait_for_watch(number))

    async def _start(self) -> web.AppRunner:
        app = web.Application()
        one = RECIPES + "/{name}"
        core = "/api/v1/namespaces/{namespace}"
        app.router.add_get("/apis/megatron.training/v1alpha1/megatronrecipes", self._list)
        app.router.add_get(RECIPES, self._list)
        app.router.add_get(one, self._get)
        app.router.add_patch(one, self._patch)
        app.router.add_delete(one, self._delete)
        app.router.add_get(core + "/pods", self._list_pods)
        app.router.add_get(core + "/events", self._list_events)
        app.router.add_get(core + "/pods/{name}/log", self._log)
        app.router.add_post("/apis/authentication.k8s.io/v1/tokenreviews", self._review_token)
        app.router.add_post("/apis/authorization.k8s.io/v1/subjectaccessreviews", self._review_access)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    async def _stop(self, runner: web.AppRunner) -> None:
        await self._end_watches()
        await runner.cleanup()

    async def _change(self, kind: str, recipe: Object) -> Object:
        self._version += 1
        recipe = recipe | {"metadata": recipe["metadata"] | {"resourceVersion": str(self._version)}}
        key = recipe["metadata"]["namespace"], recipe["metadata"]["name"]
        if kind == "DELETED":
            del self.recipes[key]
        else:
            self.recipes[key] = recipe
        async with self._changed:
            self._history.append((self._version, kind, recipe))
            self._changed.notify_all()
        return recipe

    async def _update_status(self, namespace: str, name: str, status: Object) -> None:
        recipe = self.recipes[namespace, name]
        await self._change("MODIFIED", recipe | {"status": recipe.get("status", {}) | status})

    async def _remove(self, namespace: str, name: str) -> None:
        await self._change("DELETED", self.recipes[namespace, name])

    async def _end_watches(self, *, abort: bool = False) -> None:
        async with self._changed:
            self._watch_ends += 1
            self._abort = abort
            self._changed.notify_all()

    async def _end_containers(self) -> None:
        async with self._changed:
            self.running_pods.clear()
            self._changed.notify_all()

    async def _wait_for_watch(self, number: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._watches() >= number)

    def _watches(self) -> int:
        return sum("watch" in query for _, _, query in self.requests)

    async def _note(self, request: web.Request) -> None:
        async with self._changed:
            self.requests.append((request.method, request.path, dict(request.query)))
            self._changed.notify_all()

    async def _list(self, request: web.Request) -> web.StreamResponse:
        ends = self._watch_ends  # from here on: once a watch is noted, it ends with all others
        await self._note(request)
        if self.aborting:
            _break_connection(request)
        if self.failing:
            return _error(self.failing.pop(0), "InternalError", "etcdserver: leader changed")
        name = request.query.get("fieldSelector", "").removeprefix("metadata.name=")
        if "watch" in request.query:
            return await self._watch(request, name, ends)
        namespace = request.match_info.get("namespace")
        labels = dict(pair.split("=") for pair in request.query.get("labelSelector", "").split(",") if pair)
        found = [
            recipe
            for (its_namespace, its_name), recipe in self.recipes.items()
            if namespace in (None, its_namespace)
            and name in ("", its_name)
            and labels.items() <= (recipe["metadata"].get("labels") or {}).items()
        ]
        return web.json_response({"metadata": {"resourceVersion": str(self._version)}, "items": found})

    async def _watch(self, request: web.Request, name: str, ends: int) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        since = int(request.query["resourceVersion"])
        if self.watched:
            await response.write(self.watched.pop(0))
            return response
        if self.broken_watches:
            self.broken_watches -= 1
            _break_connection(request)
        if self.expired:
            self.expired = False
            await _send(response, "ERROR", {"code": 410, "reason": "Expired", "message": "too old"})
            return response
        async for kind, recipe in self._events_since(since, ends):
            namespace = request.match_info.get("namespace", recipe["metadata"]["namespace"])
            if name in ("", recipe["metadata"]["name"]) and namespace == recipe["metadata"]["namespace"]:
                await _send(response, kind, recipe)
        if self._abort:
            _break_connection(request)
        return response

    async def _events_since(self, since: int, ends: int) -> AsyncIterator[tuple[str, Object]]:
        while True:
            async with self._changed:
                while self._watch_ends == ends and self._version <= since:
                    await self._changed.wait()
                if self._watch_ends > ends:
                    return
                new = [entry for entry in self._history if entry[0] > since]
            since = new[-1][0]
            for _, kind, recipe in new:
                yield kind, recipe

    async def _get(self, request: web.Request) -> web.Response:
        await self._note(request)
        recipe = self.recipes.get(_key(request))
        return _error(404, "NotFound", "recipe not found") if recipe is None else web.json_response(recipe)

    async def _patch(self, request: web.Request) -> web.Response:
        await self._note(request)
        body, key, manager = await request.json(), _key(request), request.query["fieldManager"]
        before = self.recipes.get(key)
        if request.content_type == "application/merge-patch+json":
            if before is None:
                return _error(404, "NotFound", "recipe not found")
            if self.refusal:
                return _error(422, "Invalid", self.refusal)
            if body["metadata"]["uid"] != before["metadata"]["uid"]:
                return _error(422, "Invalid", "metadata.uid: Invalid value: field is immutable")
            spec = before["spec"] | body["spec"]
            return web.json_response(await self._change("MODIFIED", before | {"spec": spec}))
        owner = manager if before is None else before["metadata"]["managedFields"][0]["manager"]
        if owner != manager and request.query["force"] != "true":
            message = f'Apply failed with 1 conflict: conflict with "{owner}": .spec.training.lr'
            return _error(409, "Conflict", message)
        generation = 1 if before is None else before["metadata"]["generation"] + 1
        metadata = {
            "uid": f"uid-{key[1]}",
            "creationTimestamp": CREATED,
            "generation": generation,
            "managedFields": [{"manager": manager}],
        }
        kind = "ADDED" if before is None else "MODIFIED"
        applied = (before or {}) | body | {"metadata": body["metadata"] | metadata}
        changed = await self._change(kind, applied)
        if kind == "ADDED" and self.first_status:
            await self._update_status(*key, self.first_status)
        return web.json_response(changed)

    async def _delete(self, request: web.Request) -> web.Response:
        await self._note(request)
        recipe, options = self.recipes.get(_key(request)), await request.json()
        if recipe is None:
            return _error(404, "NotFound", "recipe not found")
        if options["preconditions"]["uid"] != recipe["metadata"]["uid"]:
            return _error(409, "Conflict", "another object has this name")
        return web.json_response(await self._change("DELETED", recipe))

    async def _list_pods(self, request: web.Request) -> web.Response:
        await self._note(request)
        return web.json_response({"items": self.pods})

    async def _list_events(self, request: web.Request) -> web.Response:
        await self._note(request)
        uid = request.query["fieldSelector"].removeprefix("involvedObject.uid=")
        found = [event for event in self.events if event["involvedObject"]["uid"] == uid]
        return web.json_response({"items": found})

    async def _log(self, request: web.Request) -> web.StreamResponse:
        await self._note(request)
        if self.forbids_logs:
            return _error(403, "Forbidden", "pods/log is forbidden")
        query = request.query
        if request.match_info["name"] in self.silent_pods:
            await asyncio.Event().wait()
        if (request.match_info["name"], "previous" in query) in self.lost_logs:
            return _error(400, "BadRequest", "previous terminated container not found")
        text = self.logs[request.match_info["name"], "previous" in query]
        lines = [line if _TIMED.match(line) else f"{CREATED} {line}" for line in text.splitlines()]
        lines = [line for line in lines if line >= query.get("sinceTime", "")]
        lines = lines[-int(query.get("tailLines", len(lines))) :] if lines else []
        if "timestamps" not in query:
            lines = [line.partition(" ")[2] for line in lines]
        text = "".join(f"{line}\n" for line in lines)
        return await self._follow(request, text) if "follow" in query else web.Response(text=text)

    async def _follow(self, request: web.Request, text: str) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(text.encode())
        async with self._changed:
            await self._changed.wait_for(lambda: request.match_info["name"] not in self.running_pods)
        return response

    async def _review_token(self, request: web.Request) -> web.Response:
        await self._note(request)
        user = self.tokens.get((await request.json())["spec"]["token"])
        status = {"authenticated": False} if user is None else {"authenticated": True, "user": user}
        return web.json_response({"status": status}, status=201)

    async def _review_access(self, request: web.Request) -> web.Response:
        await self._note(request)
        spec = (await request.json())["spec"]
        asked = spec["resourceAttributes"]
        resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
        right = (spec["user"], asked["verb"], resource, asked.get("namespace", ""))
        return web.json_response({"status": {"allowed": right in self.rights}}, status=201)


def _key(request: web.Request) -> tuple[str, str]:
    return request.match_info["namespace"], request.match_info["name"]


def _break_connection(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()


async def _send(response: web.StreamResponse, kind: str, content: Object) -> None:
    await response.write(json.dumps({"type": kind, "object": content}).encode() + b"\n")


def _error(code: int, reason: str, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "reason": reason, "message": message}, status=code)
