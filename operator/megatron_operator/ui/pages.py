"""The pages: the list of runs, one run, its recipe, and two runs side by side."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import yaml
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from megatron_operator.controller.api_client import ApiError
from megatron_operator.lifecycle.status_reading import read_status
from megatron_operator.sdk.errors import ClusterUnreachableError
from megatron_operator.ui import compare, views
from megatron_operator.ui.access import Access, Right, Viewer, see_logs, see_pods, see_run, see_runs
from megatron_operator.ui.placement import can_be_drawn, placement
from megatron_operator.ui.points import Point, merge
from megatron_operator.ui.published import PublishedRecipes
from megatron_operator.ui.rendering import Templates
from megatron_operator.ui.runs import RunLogs, Runs
from megatron_operator.ui.sign_in import SignIn

Object = dict[str, Any]
LIST_SECONDS: Final = 10
"""Seconds between two refreshes of the list."""
RUN_SECONDS: Final = 20
"""Seconds between two refreshes of a run."""


class Pages:
    """Handlers of requests for pages. Each asks first who wants to see what."""

    def __init__(
        self,
        runs: Runs,
        access: Access,
        published: PublishedRecipes,
        templates: Templates,
        sign_in: SignIn,
        now: Callable[[], float],
    ) -> None:
        self._runs = runs
        self._access = access
        self._published = published
        self._templates = templates
        self._sign_in = sign_in
        self._now = now

    async def runs(self, request: Request) -> Response:
        """The list of runs that the viewer may list."""
        viewer = await self._sign_in.viewer(request)
        asked = request.query_params
        visible = await self._visible(viewer, asked.get("namespace", ""))
        listed = views.run_list(
            visible, asked.get("phase", ""), asked.get("text", ""), _number(asked.get("page"), 1), self._now()
        )
        return self._page(
            request, "runs.html", viewer, LIST_SECONDS, listed=listed, asked=asked, problem=self._runs.problem
        )

    async def run(self, request: Request) -> Response:
        """One run."""
        viewer = await self._sign_in.viewer(request)
        recipe = await self._recipe(viewer, request.path_params["namespace"], request.path_params["name"])
        status = read_status(recipe.get("status"))[0]
        pods, logs = await asyncio.gather(self._pods(viewer, recipe), self._logs(viewer, recipe))
        incidents = [] if status.recovery is None else status.recovery.history
        points = self._points(recipe, logs)
        asked = request.query_params
        chosen = asked.get("rank", "")
        ranks = None
        if status.plan is not None and can_be_drawn(status.plan):
            first = _number(asked.get("node"), 0)
            rank = int(chosen) if chosen.isdecimal() and len(chosen) < 9 else None
            ranks = placement(status.plan, pods or [], incidents, first, rank)
        return self._page(
            request,
            "run.html",
            viewer,
            RUN_SECONDS,
            namespace=recipe["metadata"]["namespace"],
            name=recipe["metadata"]["name"],
            phase=status.phase or "not reconciled yet",
            plan=status.plan,
            checkpoint=status.checkpoint,
            facts=views.facts(recipe, self._now()),
            problems=views.problems(status),
            charts=views.charts([("", points)], incidents, status),
            comparisons=views.plan_against_reality(status, logs),
            ranks=ranks,
            pods_readable=pods is not None,
            interruptions=views.interruptions(status),
            events=views.events(recipe),
            ledger=views.ledger(recipe, self._now()),
            logs=logs,
            problem=self._runs.problem,
        )

    async def recipe(self, request: Request) -> Response:
        """A run's recipe and what differs from the published one."""
        viewer = await self._sign_in.viewer(request)
        recipe = await self._recipe(viewer, request.path_params["namespace"], request.path_params["name"])
        return self._page(
            request,
            "recipe.html",
            viewer,
            None,
            namespace=recipe["metadata"]["namespace"],
            name=recipe["metadata"]["name"],
            text=yaml.safe_dump({"spec": recipe.get("spec")}, sort_keys=False, allow_unicode=True),
            difference=await self._published.difference(recipe),
        )

    async def compare(self, request: Request) -> Response:
        """Two runs; without both, the form that asks for them."""
        viewer = await self._sign_in.viewer(request)
        asked = [request.query_params.get(name, "") for name in ("a", "b")]
        if not all(asked):
            return self._page(request, "compare.html", viewer, None, asked=asked, names=None)
        split = [each.partition("/") for each in asked]
        recipes = [await self._recipe(viewer, namespace, name) for namespace, _, name in split]
        found = await asyncio.gather(*(self._logs(viewer, each) for each in recipes))
        points = [self._points(each, logs) for each, logs in zip(recipes, found, strict=True)]
        return self._page(
            request,
            "compare.html",
            viewer,
            RUN_SECONDS,
            asked=asked,
            names=split,
            pairs=compare.compare(*recipes),
            settings=compare.settings(*recipes),
            charts=views.charts(list(zip(asked, points, strict=True))),
        )

    async def ledger(self, request: Request) -> Response:
        """GPU hours of all runs that the viewer may list, by namespace."""
        viewer = await self._sign_in.viewer(request)
        asked = request.query_params.get("namespace", "")
        visible = await self._visible(viewer, asked)
        # A thousand ledgers take longer than other requests may wait.
        totals = await asyncio.to_thread(views.fleet, visible, self._now())
        return self._page(
            request, "ledger.html", viewer, None, totals=totals, asked=asked, problem=self._runs.problem
        )

    def _page(
        self, request: Request, template: str, viewer: Viewer, seconds: int | None, **values: Any
    ) -> Response:
        """A page that refreshes itself, unless the viewer has paused that."""
        paused = request.query_params.get("refresh") == "off"
        refresh = None
        if seconds is not None:
            other = request.url.remove_query_params("refresh")
            if not paused:
                other = other.include_query_params(refresh="off")
            link = other.path + (f"?{other.query}" if other.query else "")
            refresh = {"seconds": None if paused else seconds, "link": link}
        return self._templates.response(template, viewer=viewer.name, refresh=refresh, **values)

    async def _visible(self, viewer: Viewer, namespace: str) -> list[Object]:
        """Recipes that the viewer may list: of a namespace, else of all in which they may."""
        recipes = self._runs.all()
        if namespace:
            await self._require(viewer, see_runs(namespace))
            return [each for each in recipes if each["metadata"]["namespace"] == namespace]
        if await self._access.allows(viewer, see_runs(None)):
            return recipes
        names = sorted({str(each["metadata"]["namespace"]) for each in recipes})
        allowed = await asyncio.gather(*(self._access.allows(viewer, see_runs(name)) for name in names))
        readable = {name for name, may in zip(names, allowed, strict=True) if may}
        return [each for each in recipes if each["metadata"]["namespace"] in readable]

    async def _recipe(self, viewer: Viewer, namespace: str, name: str) -> Object:
        """A recipe that the viewer may get. Whether it exists is checked last: that is no secret to them."""
        await self._require(viewer, see_run(namespace, name))
        found = self._runs.get(namespace, name)
        if found is None:
            raise HTTPException(404, f"There is no run {namespace}/{name}.")
        return found

    async def _require(self, viewer: Viewer, right: Right) -> None:
        if not await self._access.allows(viewer, right):
            what = f"{right.verb} {right.resource} in namespace {right.namespace}"
            raise HTTPException(403, f"{viewer.name} may not {what}; ask its owner for that right.")

    async def _pods(self, viewer: Viewer, recipe: Object) -> list[Object] | None:
        """None where they cannot be read."""
        try:
            if await self._access.allows(viewer, see_pods(recipe["metadata"]["namespace"])):
                return await self._runs.pods(recipe)
        except (ApiError, ClusterUnreachableError):
            return None
        return None

    async def _logs(self, viewer: Viewer, recipe: Object) -> RunLogs:
        if await self._access.allows(viewer, see_logs(recipe["metadata"]["namespace"])):
            return await self._runs.logs(recipe)
        return RunLogs(problem=f"{viewer.name} may not read logs in this namespace (get pods/log)")

    def _points(self, recipe: Object, logs: RunLogs) -> list[Point]:
        return merge(self._runs.samples(recipe), logs.points)


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 9 else default
