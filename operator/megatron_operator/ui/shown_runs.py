"""The runs that a viewer may see: those of the cluster, deleted ones of the archive, and journals."""

import asyncio
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from starlette.exceptions import HTTPException

from megatron_operator.cli.deleted_runs import NOT_COUNTED, UNKNOWN, DeletedRuns, deleted_runs
from megatron_operator.controller.api_client import ApiError
from megatron_operator.sdk.errors import ClusterUnreachableError
from megatron_operator.ui.access import Access, Right, Viewer, see_logs, see_pods, see_run, see_runs
from megatron_operator.ui.archive import Archive
from megatron_operator.ui.archive_reads import ArchivedRun, ArchivePage
from megatron_operator.ui.deleted_use import DeletedUse
from megatron_operator.ui.history import RunHistory
from megatron_operator.ui.journals import UID_PREFIX, JournalRun, Journals
from megatron_operator.ui.runs import RunLogs, Runs

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ShownRun:
    """A run of the cluster, a deleted one, or one of a journal."""

    recipe: Object
    archived: ArchivedRun | None = None
    """Not None for a deleted one."""
    journal: JournalRun | None = None
    """Not None for one of a journal."""

    @property
    def reference(self) -> str:
        """`namespace/name`, with `@uid` for a deleted run or a journal, as the comparison takes it."""
        metadata = self.recipe["metadata"]
        exists = self.archived is None and self.journal is None
        return f"{metadata['namespace']}/{metadata['name']}" + ("" if exists else f"@{metadata['uid']}")

    @property
    def query(self) -> str:
        """Query of its pages' addresses: `uid=...` for a deleted run, else empty."""
        return "" if self.archived is None else f"uid={quote(str(self.recipe['metadata']['uid']), safe='')}"

    @property
    def address(self) -> str:
        """Path and query of its page."""
        metadata = self.recipe["metadata"]
        if self.journal is not None:
            return f"/journals/{self.journal.uid}"
        path = "/".join(quote(str(metadata[key]), safe="") for key in ("namespace", "name"))
        return f"/runs/{path}" + (f"?{self.query}" if self.query else "")


class ShownRuns:
    """Looks runs up for viewers. All methods raise ApiError and ClusterUnreachableError of reviews."""

    def __init__(
        self,
        runs: Runs,
        access: Access,
        archive: Archive | None,
        journals: Journals | None = None,
        deleted_use: DeletedUse | None = None,
    ) -> None:
        self._runs = runs
        self._deleted_use = deleted_use
        self._access = access
        self._archive = archive
        self._journals = journals

    @property
    def problem(self) -> str | None:
        """Why the runs may be outdated."""
        return self._runs.problem

    @property
    def archive_problem(self) -> str | None:
        """Why runs are not archived."""
        return None if self._archive is None else self._archive.problem

    async def visible(self, viewer: Viewer, namespace: str) -> list[Object]:
        """Recipes that the viewer may list: of a namespace, else of all in which they may.

        Raises HTTPException 403.
        """
        return await self._visible(viewer, namespace, self._runs.all())

    async def _visible(self, viewer: Viewer, namespace: str, recipes: list[Object]) -> list[Object]:
        if namespace:
            await self._require(viewer, see_runs(namespace))
            return [each for each in recipes if each["metadata"]["namespace"] == namespace]
        readable = await self._readable(viewer, {str(each["metadata"]["namespace"]) for each in recipes})
        return [each for each in recipes if each["metadata"]["namespace"] in readable]

    async def with_deleted(self, viewer: Viewer, namespace: str) -> tuple[list[Object], DeletedRuns]:
        """As `visible`, and what deleted runs of the same namespaces have used: no run is in both.

        Raises HTTPException 403.
        """
        if namespace:
            await self._require(viewer, see_runs(namespace))
        source = self._deleted_use
        # Before the recipes: a record of a run that is not among them is that of a deleted one.
        records = None if source is None else await source.records()
        recipes, problem = self._runs.all(), self._runs.problem
        visible = await self._visible(viewer, namespace, recipes)
        if source is None or records is None:
            return visible, UNKNOWN
        if problem is not None:
            # Runs that exist may be missing from the list.
            return visible, DeletedRuns(not_counted=f"{NOT_COUNTED}: {problem.rstrip('.')}.")
        found = deleted_runs(records, recipes, namespace or None)
        readable = await self._readable(viewer, set(filter(source.shows, found.by_namespace)))
        kept = {name: use for name, use in found.by_namespace.items() if name in readable}
        return visible, DeletedRuns(kept, found.not_counted)

    async def deleted(
        self, viewer: Viewer, namespace: str, text: str, first: int, count: int
    ) -> tuple[ArchivePage, list[str]]:
        """Deleted runs that the viewer may list, and their namespaces. Raises HTTPException 403, 404."""
        if self._archive is None:
            raise HTTPException(404, "This page has no archive; start it with --archive (chart: ui.archive).")
        if namespace:
            await self._require(viewer, see_runs(namespace))
        names = await self._readable(viewer, set(await self._archive.namespaces()))
        chosen = {namespace} & names if namespace else names
        return await self._archive.runs(sorted(chosen), text, first, count), sorted(names)

    async def run(self, viewer: Viewer, namespace: str, name: str, uid: str = "") -> ShownRun:
        """A run of the cluster that the viewer may get, or a deleted one of a namespace that they may list.

        With a UID that run, else the one that exists or was deleted last. Whether it exists is checked
        last: that is no secret to them. Raises HTTPException 403, 404, and 503 where it is not known.
        """
        found, problem = self._runs.get(namespace, name), self._runs.problem_of(namespace)
        if found is None or uid not in ("", str(found["metadata"].get("uid"))):
            found = None
            # Without a UID, a deleted one only where it is known that none of its name exists.
            archive = self._archive if uid or problem is None else None
            if archive is not None and await self._access.allows(viewer, see_runs(namespace)):
                archived = await archive.run(namespace, name, uid)
                if archived is not None:
                    return ShownRun(archived.recipe, archived)
        await self._require(viewer, see_run(namespace, name))
        if found is None and problem is not None:
            text = f"Whether there is a run {namespace}/{name} is not known: {problem.rstrip('.')}."
            raise HTTPException(503, text)
        if found is None:
            raise HTTPException(404, f"There is no run {namespace}/{name}.")
        return ShownRun(found)

    async def referred(self, viewer: Viewer, namespace: str, name: str, uid: str = "") -> ShownRun:
        """As `run`; where there is none, the journal of this UID, or of this folder and name."""
        journal = None
        if self._journals is not None and uid.startswith(UID_PREFIX):
            journal = await self._journals.run(uid)
        if journal is None:
            try:
                return await self.run(viewer, namespace, name, uid)
            except HTTPException as error:
                if self._journals is None or uid or error.status_code != 404:
                    raise
                journal = await self._journals.named(namespace, name)
                if journal is None:
                    raise
        return ShownRun(journal.recipe, journal=journal)

    async def history(self, shown: ShownRun) -> RunHistory:
        """What is known of a run's past."""
        if shown.journal is not None and self._journals is not None:
            course = await self._journals.course(shown.journal)
            return RunHistory() if course is None else RunHistory(course.points, share=course.share)
        if shown.archived is not None and self._archive is not None:
            return await self._archive.history(shown.recipe)
        return await self._runs.history(shown.recipe)

    async def pods(self, viewer: Viewer, shown: ShownRun) -> list[Object] | None:
        """Its trainer pods; None where they cannot be read."""
        if shown.archived is not None:
            return []
        try:
            if await self._access.allows(viewer, see_pods(shown.recipe["metadata"]["namespace"])):
                return await self._runs.pods(shown.recipe)
        except (ApiError, ClusterUnreachableError):
            return None
        return None

    async def logs(self, viewer: Viewer, shown: ShownRun) -> RunLogs:
        """What its logs have."""
        if shown.journal is not None:
            return RunLogs(problem="a journal has no logs")
        if shown.archived is not None:
            return RunLogs(problem="the run was deleted, and its pods with it")
        if await self._access.allows(viewer, see_logs(shown.recipe["metadata"]["namespace"])):
            return await self._runs.logs(shown.recipe)
        return RunLogs(problem=f"{viewer.name} may not read logs in this namespace (get pods/log)")

    async def _readable(self, viewer: Viewer, names: set[str]) -> set[str]:
        """Those of these namespaces whose runs the viewer may list."""
        if await self._access.allows(viewer, see_runs(None)):
            return names
        ordered = sorted(names)
        allowed = await asyncio.gather(*(self._access.allows(viewer, see_runs(name)) for name in ordered))
        return {name for name, may in zip(ordered, allowed, strict=True) if may}

    async def _require(self, viewer: Viewer, right: Right) -> None:
        if not await self._access.allows(viewer, right):
            what = f"{right.verb} {right.resource} in namespace {right.namespace}"
            raise HTTPException(403, f"{viewer.name} may not {what}; ask its owner for that right.")
