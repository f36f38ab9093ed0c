"""The pages: the list of runs, one run, its recipe, two runs side by side, GPU hours, deleted runs."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from megatron_operator.api import yaml_documents
from megatron_operator.api.recovery_status import Incident
from megatron_operator.api.status import Plan
from megatron_operator.lifecycle.status_reading import read_status
from megatron_operator.ui import compare, run_list, views
from megatron_operator.ui.access import Viewer
from megatron_operator.ui.history import with_history
from megatron_operator.ui.placement import Placement, can_be_drawn, placement
from megatron_operator.ui.points import merge
from megatron_operator.ui.published import PublishedRecipes
from megatron_operator.ui.rendering import Templates
from megatron_operator.ui.shown_runs import ShownRun, ShownRuns
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
        shown: ShownRuns,
        published: PublishedRecipes,
        templates: Templates,
        sign_in: SignIn,
        now: Callable[[], float],
    ) -> None:
        self._shown = shown
        self._published = published
        self._templates = templates
        self._sign_in = sign_in
        self._now = now

    async def runs(self, request: Request) -> Response:
        """The list of runs that the viewer may list."""
        viewer = await self._sign_in.viewer(request)
        asked = request.query_params
        visible = await self._shown.visible(viewer, asked.get("namespace", ""))
        listed = run_list.run_list(
            visible,
            asked.get("phase", ""),
            asked.get("text", ""),
            number_of(asked.get("page"), 1),
            self._now(),
        )
        return self.page(request, "runs.html", viewer, LIST_SECONDS, listed=listed, asked=asked)

    async def archive(self, request: Request) -> Response:
        """The list of deleted runs that the viewer may list."""
        viewer = await self._sign_in.viewer(request)
        asked = request.query_params
        number = max(1, number_of(asked.get("page"), 1))
        found, names = await self._shown.deleted(
            viewer,
            asked.get("namespace", ""),
            asked.get("text", ""),
            (number - 1) * run_list.PAGE_SIZE,
            run_list.PAGE_SIZE,
        )
        listed = await asyncio.to_thread(run_list.deleted_list, found, number, names)
        return self.page(request, "archive.html", viewer, None, listed=listed, asked=asked)

    async def run(self, request: Request) -> Response:
        """One run."""
        viewer = await self._sign_in.viewer(request)
        shown = await self._of_path(viewer, request)
        recipe, now = shown.recipe, self._time_of(shown)
        status = read_status(recipe.get("status"))[0]
        pods, logs, history = await asyncio.gather(
            self._shown.pods(viewer, shown), self._shown.logs(viewer, shown), self._shown.history(shown)
        )
        past = with_history(recipe, history)
        with_past = read_status(past.get("status"))[0]
        incidents = [] if with_past.recovery is None else with_past.recovery.history
        ranks = None
        if status.plan is not None and can_be_drawn(status.plan):
            ranks = _placement(request, status.plan, pods or [], incidents)
        return self.page(
            request,
            "run.html",
            viewer,
            RUN_SECONDS if shown.archived is None else None,
            shown=shown,
            namespace=recipe["metadata"]["namespace"],
            name=recipe["metadata"]["name"],
            phase=status.phase or "not reconciled yet",
            deletion=run_list.deletion(shown.archived),
            plan=status.plan,
            checkpoint=status.checkpoint,
            checkpoints=views.checkpoints(history),
            facts=views.facts(recipe, now, ago="ago" if shown.archived is None else run_list.BEFORE_END),
            problems=views.problems(status),
            charts=views.charts([("", merge(history.points, logs.points))], incidents, status),
            comparisons=views.plan_against_reality(status, logs),
            ranks=ranks,
            pods_readable=pods is not None,
            interruptions=views.interruptions(with_past),
            events=views.events(past, history.phases),
            ledger=views.ledger(recipe, now),
            logs=logs,
        )

    async def recipe(self, request: Request) -> Response:
        """A run's recipe and what differs from the published one."""
        viewer = await self._sign_in.viewer(request)
        shown = await self._of_path(viewer, request)
        recipe = shown.recipe
        return self.page(
            request,
            "recipe.html",
            viewer,
            None,
            shown=shown,
            namespace=recipe["metadata"]["namespace"],
            name=recipe["metadata"]["name"],
            text=yaml_documents.dump({"spec": recipe.get("spec")}),
            difference=await self._published.difference(recipe),
        )

    async def compare(self, request: Request) -> Response:
        """Two runs; without both, the form that asks for them."""
        viewer = await self._sign_in.viewer(request)
        asked = [request.query_params.get(name, "") for name in ("a", "b")]
        if not all(asked):
            return self.page(request, "compare.html", viewer, None, asked=asked, shown=None)
        both = [await self._of_reference(viewer, each) for each in asked]
        logs, histories = await asyncio.gather(
            asyncio.gather(*(self._shown.logs(viewer, each) for each in both)),
            asyncio.gather(*(self._shown.history(each) for each in both)),
        )
        points = [merge(history.points, found.points) for history, found in zip(histories, logs, strict=True)]
        recipes, names = [each.recipe for each in both], compare.names(*both)
        return self.page(
            request,
            "compare.html",
            viewer,
            RUN_SECONDS,
            asked=asked,
            shown=both,
            pairs=compare.compare(*recipes),
            settings=compare.settings(*recipes),
            recorded=all(each.journal is None for each in both),
            names=names,
            shares=[each.share for each in histories],
            charts=views.charts(list(zip(names, points, strict=True))),
        )

    async def ledger(self, request: Request) -> Response:
        """GPU hours of all runs that the viewer may list, by namespace."""
        viewer = await self._sign_in.viewer(request)
        asked = request.query_params.get("namespace", "")
        visible, deleted = await self._shown.with_deleted(viewer, asked)
        # A thousand ledgers take longer than other requests may wait.
        totals = await asyncio.to_thread(views.fleet, visible, self._now(), deleted)
        return self.page(request, "ledger.html", viewer, None, totals=totals, asked=asked)

    def page(
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
        values |= {"problem": self._shown.problem, "archive_problem": self._shown.archive_problem}
        return self._templates.response(template, viewer=viewer.name, refresh=refresh, **values)

    async def _of_path(self, viewer: Viewer, request: Request) -> ShownRun:
        asked = request.path_params
        uid = request.query_params.get("uid", "")
        return await self._shown.run(viewer, asked["namespace"], asked["name"], uid)

    async def _of_reference(self, viewer: Viewer, text: str) -> ShownRun:
        """The run of `namespace/name` or `namespace/name@uid`; for a journal, its folder is the namespace."""
        namespace, _, rest = text.partition("/")
        name, at, uid = rest.rpartition("@")
        return await self._shown.referred(viewer, namespace, name if at else rest, uid if at else "")

    def _time_of(self, shown: ShownRun) -> float:
        """Unix time at which a run is shown: now, or the end of a deleted one."""
        return self._now() if shown.archived is None else shown.archived.until


def _placement(request: Request, plan: Plan, pods: list[Object], incidents: list[Incident]) -> Placement:
    """The ranks of the nodes that were asked for."""
    asked = request.query_params
    chosen = asked.get("rank", "")
    rank = int(chosen) if chosen.isdecimal() and len(chosen) < 9 else None
    return placement(plan, pods, incidents, number_of(asked.get("node"), 0), rank)


def number_of(text: str | None, default: int) -> int:
    """A number of a query; `default` for what is none."""
    return int(text) if text is not None and text.isdecimal() and len(text) < 9 else default
