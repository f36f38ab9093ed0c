"""The runs of a cluster: watched, so that any number of viewers costs the API server as much as one."""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from megatron_operator.api.status import Plan
from megatron_operator.cli.first_failure import first_failed_pod
from megatron_operator.cli.kubectl import own_pods, trainer_selector
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.api_resources import PODS, RECIPES
from megatron_operator.lifecycle.status_reading import read_status
from megatron_operator.manifests.job_backends import newest_by_place, node_rank
from megatron_operator.sdk.connection import (
    RETRY_DELAYS,
    SILENCE,
    WATCH_SECONDS,
    AsyncConnection,
    pause_after_watch,
    watch_event,
)
from megatron_operator.sdk.errors import ClusterUnreachableError
from megatron_operator.sdk.losses import loss_points
from megatron_operator.ui.failure_log import LOG_SECONDS, FailureLog, read_failure_log
from megatron_operator.ui.history import MemoryRecorder, Recorder, RunHistory, key_of
from megatron_operator.ui.points import Point, measured_memory, points_of_log

Object = dict[str, Any]
LOG_LINES: Final = 20_000
"""Newest lines of a log that are read for the charts."""
LOG_REMEMBERED: Final = 20.0
"""Seconds for which what was read of a run's logs is shown again."""
_LOGS_SECONDS: Final = 15.0
"""In which the pods and the logs of a run are read, the wait for other runs included."""
_LOG_BYTES: Final = 16 << 20
"""Of a log at most: lines may be as long as a program likes."""
_LONGEST_LINE: Final = 2000
_LOGS_AT_ONCE: Final = 4
_UNREADABLE: Final = (TimeoutError, ApiError, ClusterUnreachableError)
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunLogs:
    """What a run's logs have."""

    points: tuple[Point, ...] = ()
    memory: int | None = None
    """Memory that Megatron has reported, in bytes."""
    failure: FailureLog | None = None
    """The pod that failed first; None where none has."""
    problem: str | None = None
    """Why there is nothing, or not everything."""


class Runs(Protocol):
    """The runs that the page can show."""

    problem: str | None
    """Why the runs may be outdated."""

    def all(self) -> list[Object]:
        """All recipes, in no order."""

    def get(self, namespace: str, name: str) -> Object | None:
        """One recipe."""

    def problem_of(self, namespace: str) -> str | None:
        """Why runs of a namespace may be missing; None where all are known, or none are to be."""

    async def history(self, recipe: Object) -> RunHistory:
        """What is known of its past."""

    async def pods(self, recipe: Object) -> list[Object]:
        """Its trainer pods. Raises ApiError, ClusterUnreachableError."""

    async def logs(self, recipe: Object) -> RunLogs:
        """What its logs have."""


class NoRuns:
    """The runs of a page without a cluster."""

    problem: str | None = None

    def all(self) -> list[Object]:
        """None."""
        return []

    def get(self, namespace: str, name: str) -> Object | None:  # noqa: ARG002
        """None."""
        return None

    def problem_of(self, namespace: str) -> str | None:  # noqa: ARG002
        """None."""
        return None

    async def history(self, recipe: Object) -> RunHistory:  # noqa: ARG002
        """Nothing."""
        return RunHistory()

    async def pods(self, recipe: Object) -> list[Object]:  # noqa: ARG002
        """None."""
        return []

    async def logs(self, recipe: Object) -> RunLogs:  # noqa: ARG002
        """Nothing."""
        return RunLogs(problem="there is no cluster")


class WatchedRuns:
    """Recipes of a cluster, kept by a watch of each namespace, or of all."""

    def __init__(
        self,
        connection: AsyncConnection,
        namespaces: Sequence[str | None],
        recorder: Recorder | None = None,
    ) -> None:
        """Of these namespaces; (None,) for all. Without a recorder the points are kept in memory."""
        self.problem: str | None = "the runs have not been read yet"
        self._connection = connection
        self._namespaces = tuple(namespaces)
        self._problems: dict[str | None, str] = dict.fromkeys(self._namespaces, self.problem)
        self._recipes: dict[tuple[str, str], Object] = {}
        self._recorder = recorder or MemoryRecorder()
        self._logs: dict[str, tuple[float, asyncio.Task[RunLogs]]] = {}
        """By UID."""
        self._slots = asyncio.Semaphore(_LOGS_AT_ONCE)

    def all(self) -> list[Object]:
        """All recipes, in no order."""
        return list(self._recipes.values())

    def get(self, namespace: str, name: str) -> Object | None:
        """One recipe."""
        return self._recipes.get((namespace, name))

    def problem_of(self, namespace: str) -> str | None:
        """Why its runs may be missing: the list has not been read, or the watch is lost."""
        return self._problems.get(namespace) or self._problems.get(None) or None

    async def history(self, recipe: Object) -> RunHistory:
        """What the recorder has of its past."""
        return await self._recorder.history(recipe)

    async def pods(self, recipe: Object) -> list[Object]:
        """Its trainer pods."""
        namespace, name = key_of(recipe)
        async with self._connection.client() as api:
            return own_pods(recipe, await api.find(PODS, namespace, labels=trainer_selector(name)))

    async def logs(self, recipe: Object) -> RunLogs:
        """What its logs have, read at most once in LOG_REMEMBERED seconds whoever asks."""
        key, now = str(recipe["metadata"].get("uid")), time.monotonic()
        self._logs = {each: known for each, known in self._logs.items() if now < known[0]}
        if key not in self._logs:
            self._logs[key] = (now + LOG_REMEMBERED, asyncio.create_task(self._read_logs(recipe)))
        return await asyncio.shield(self._logs[key][1])

    async def follow(self) -> None:
        """Keep the recipes up to date until this is cancelled."""
        async with asyncio.TaskGroup() as group:
            for namespace in self._namespaces:
                group.create_task(self._follow(namespace))

    async def _follow(self, namespace: str | None) -> None:
        failures = 0
        while True:
            try:
                async with self._connection.client() as api:
                    found, version = await api.list_recipes(namespace)
                self._replace(namespace, found)
                self._note(namespace, None)
                failures = 0
                began = time.monotonic()
                await self._watch(namespace, version)
                await pause_after_watch(began)
            except Exception as error:  # Whatever it is: the page goes on with what it knows.
                _logger.warning("cannot watch recipes of %s: %s", namespace or "all namespaces", error)
                self._note(namespace, str(error))
                failures += 1
                await asyncio.sleep(max(1.0, RETRY_DELAYS[min(failures, 6)]))

    def _note(self, namespace: str | None, problem: str | None) -> None:
        self._problems[namespace] = problem or ""
        self.problem = next((each for each in self._problems.values() if each), None)

    async def _watch(self, namespace: str | None, version: str) -> None:
        """Take over changes until the API server ends the watch. Raises ApiError, ClusterUnreachableError."""
        query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": str(WATCH_SECONDS)}
        path = RECIPES.path(namespace) if namespace else RECIPES.cluster_path()
        async with self._connection.client() as api, aclosing(api.lines(path, query, SILENCE)) as lines:
            async for line in lines:
                event = watch_event(line)
                if event is None:
                    return
                if event["type"] == "DELETED":
                    self._recipes.pop(key_of(event["object"]), None)
                    self._recorder.delete(event["object"])
                else:
                    self._put(event["object"])

    def _replace(self, namespace: str | None, found: Sequence[Object]) -> None:
        kept = {key_of(each) for each in found}
        for key in [each for each in self._recipes if namespace in (None, each[0]) and each not in kept]:
            del self._recipes[key]
        for each in found:
            self._put(each)
        self._recorder.complete(namespace, found)

    def _put(self, recipe: Object) -> None:
        recipe["metadata"].pop("managedFields", None)
        self._recipes[key_of(recipe)] = recipe
        self._recorder.observe(recipe)

    async def _read_logs(self, recipe: Object) -> RunLogs:
        try:
            async with asyncio.timeout(_LOGS_SECONDS), self._slots:
                return await self._logs_of(recipe)
        except _UNREADABLE as error:
            return RunLogs(problem=_problem(error, _LOGS_SECONDS))

    async def _logs_of(self, recipe: Object) -> RunLogs:
        pods = await self.pods(recipe)
        if not pods:
            return RunLogs(problem="the run has no pods, whose logs could be read")
        # Neither waits for the other: the log of one pod may be missing, and its node lost.
        course, failure = await asyncio.gather(self._course(recipe, pods), self._failure(recipe, pods))
        return replace(course, failure=failure)

    async def _course(self, recipe: Object, pods: Sequence[Object]) -> RunLogs:
        """What the last pod's log has."""
        namespace, _ = key_of(recipe)
        last = max(newest_by_place(pods), key=node_rank)["metadata"]["name"]
        log = self._connection.log(namespace, last, tail=LOG_LINES, timestamps=True, limit_bytes=_LOG_BYTES)
        try:
            async with asyncio.timeout(LOG_SECONDS), aclosing(log) as found:
                lines = [line[:_LONGEST_LINE] async for line in found]
        except _UNREADABLE as error:
            return RunLogs(problem=_problem(error, LOG_SECONDS))
        # In a thread: the pages of others are answered meanwhile.
        points, memory = await asyncio.to_thread(_read, lines, read_status(recipe.get("status"))[0].plan)
        return RunLogs(points, memory)

    async def _failure(self, recipe: Object, pods: Sequence[Object]) -> FailureLog | None:
        """The log of the pod that failed first."""
        failed = first_failed_pod(recipe, pods)
        has_failed = read_status(recipe.get("status"))[0].phase == "Failed"
        if failed is None or (failed.time is None and not has_failed):
            return None
        return await read_failure_log(self._connection, key_of(recipe)[0], failed)


def _problem(error: Exception, seconds: float) -> str:
    """Why logs could not be read, for which there were so many seconds."""
    if isinstance(error, TimeoutError):
        return f"reading the log took more than {seconds:.0f} s"
    if isinstance(error, ApiError) and error.status == 403:
        return "this page has no right to read logs (chart value ui.logs)"
    return f"the log cannot be read: {error}" if isinstance(error, ApiError) else str(error)


def _read(lines: Sequence[str], plan: Plan | None) -> tuple[tuple[Point, ...], int | None]:
    """Points and measured memory of a log."""
    return tuple(points_of_log(loss_points(lines), plan)), measured_memory(lines)
