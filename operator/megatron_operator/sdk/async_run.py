"""One training run in a cluster, for asynchronous programs. `run.Run` is its synchronous twin."""

import asyncio
import builtins
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.recovery_status import RecoveryStatus
from megatron_operator.api.status import MegatronRecipeStatus
from megatron_operator.api.validation import parse_recipe
from megatron_operator.cli.first_failure import first_failed_pod, pod_of_rank
from megatron_operator.cli.kubectl import own_pods, trainer_selector
from megatron_operator.cli.run_status import is_outdated, is_over
from megatron_operator.cli.timeline import incident_cost, timeline
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.api_resources import EVENTS, PODS, RECIPES
from megatron_operator.lifecycle.object_metadata import condition as condition_of
from megatron_operator.lifecycle.status_reading import read_status
from megatron_operator.manifests.job_backends import newest_by_place, node_rank
from megatron_operator.sdk.connection import FIELD_MANAGER, AsyncConnection
from megatron_operator.sdk.errors import (
    ApplyConflictError,
    LogUnavailableError,
    RunEndedError,
    RunFailedError,
    RunNotFoundError,
    WaitTimeoutError,
)
from megatron_operator.sdk.losses import LossPoint, data_frame, loss_points
from megatron_operator.sdk.readings import History, Reading, attempts
from megatron_operator.sdk.recipe import Recipe

if TYPE_CHECKING:
    import pandas

Object = dict[str, Any]
_COURSE: Final = (
    *(Phase.PENDING, Phase.QUEUED),
    *(Phase.IMPORTING, Phase.PREPARING, Phase.CHECKING, Phase.STARTING),
    *(Phase.TRAINING, Phase.EVALUATING, Phase.EXPORTING, Phase.SUCCEEDED),
)
"""Phases of a run without trouble, in order: a later one is past all earlier ones."""
_REPLACED: Final = "was deleted, and its name is that of another recipe"
_WAITING: Final = frozenset({Phase.PENDING, Phase.QUEUED})
"""Phases that a run may be in again and again, so that no later one is past them."""


class AsyncRun:
    """A MegatronRecipe in a cluster, as it was last read. Make one with `apply`, `get` or `list`.

    Every method raises ApiError where the API server refuses a request, ClusterUnreachableError without a
    connection, and RunNotFoundError where the recipe does not exist, or another one has its name since.
    """

    def __init__(self, resource: Object, connection: AsyncConnection) -> None:
        """Of an object as the API server returns it."""
        self._resource = resource
        self._connection = connection

    @classmethod
    async def apply(
        cls,
        recipe: Recipe,
        connection: AsyncConnection,
        *,
        field_manager: str = FIELD_MANAGER,
        force: bool = False,
    ) -> "AsyncRun":
        """Create the run or update it, by server-side apply.

        Fields that an earlier apply of this field manager set and the recipe omits are removed; fields of
        other managers stay. Raises ApplyConflictError for a field that another manager has set otherwise,
        unless `force` takes it over, and InvalidRecipeError for a recipe without data.
        """
        body = recipe.to_dict()
        parse_recipe(body)
        namespace = recipe.namespace or await connection.namespace()
        body["metadata"]["namespace"] = namespace
        async with connection.client() as api:
            try:
                return cls(await api.apply_recipe(body, field_manager, force=force), connection)
            except ApiError as error:
                if not error.conflict:
                    raise
                fix = "leave these fields out, or take them over with force=True"
                raise ApplyConflictError(namespace, recipe.name, f"{error.message}; {fix}") from None

    @classmethod
    async def get(cls, name: str, connection: AsyncConnection, *, namespace: str | None = None) -> "AsyncRun":
        """The run of this name."""
        return cls(await _read(connection, namespace or await connection.namespace(), name), connection)

    @classmethod
    async def list(
        cls,
        connection: AsyncConnection,
        *,
        namespace: str | None = None,
        all_namespaces: bool = False,
        selector: str | None = None,
    ) -> "builtins.list[AsyncRun]":
        """The runs of a namespace, or of all, by label selector (`team=nlp,tier!=test`)."""
        where = None if all_namespaces else namespace or await connection.namespace()
        async with connection.client() as api:
            return [cls(item, connection) for item in await api.find(RECIPES, where, labels=selector)]

    @property
    def name(self) -> str:
        """Name of the recipe."""
        return str(self._resource["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Namespace of the recipe."""
        return str(self._resource["metadata"]["namespace"])

    @property
    def resource(self) -> Object:
        """The object as it was last read."""
        return self._resource

    @property
    def status(self) -> MegatronRecipeStatus:
        """The status as it was last read; what another version of the operator added is left out."""
        return read_status(self._resource.get("status"))[0]

    @property
    def phase(self) -> str | None:
        """`status.phase` as it was last read; None before the operator has reconciled the recipe."""
        phase = (self._resource.get("status") or {}).get("phase")
        return None if phase is None else str(phase)

    @property
    def recipe(self) -> Recipe:
        """The recipe as it was last read."""
        return Recipe.from_dict(self._resource)

    async def refresh(self) -> "AsyncRun":
        """Read the recipe again; returns the same run."""
        found = await _read(self._connection, self.namespace, self.name)
        if not self._is_same(found):
            raise RunNotFoundError(self.namespace, self.name, _REPLACED)
        self._resource = found
        return self

    async def wait(
        self, *, phase: str | None = None, condition: str | None = None, timeout: float | None = None
    ) -> "AsyncRun":
        """Wait until the run is in a phase, or a condition is True; by default until it has succeeded.

        It watches. A status that does not observe the newest edit yet is ignored. Of Importing, Preparing,
        Checking, Starting, Training, Evaluating, Exporting and Succeeded, one counts as reached when a later
        one is.
        Returns the same run.

        Raises RunFailedError, with the last incident, when the run fails or is refused; RunEndedError when it
        succeeds without what was waited for; RunNotFoundError when its recipe is deleted; WaitTimeoutError
        after `timeout` seconds; ValueError for both a phase and a condition, or an unknown one.
        """
        if phase is not None and condition is not None:
            raise ValueError("give either phase or condition")
        goal = _one_of(Condition, condition) if condition else _one_of(Phase, phase or Phase.SUCCEEDED)
        try:
            async with asyncio.timeout(timeout), aclosing(self._changes()) as changes:
                async for _ in changes:
                    if is_outdated(self._resource):
                        continue
                    if self._has_reached(goal):
                        return self
                    if is_over(self._resource):
                        raise self._ended(goal)
        except TimeoutError:
            message = f"is not {goal} after {timeout:g} s (phase {self.phase})"
            raise WaitTimeoutError(self.namespace, self.name, message) from None
        raise RunNotFoundError(self.namespace, self.name, f"was deleted before it was {goal}")

    async def stream(self) -> AsyncGenerator[Reading]:
        """Progress now and after each change, until the run has succeeded, failed or been refused.

        The operator writes progress alone at most once in 30 s, so most iterations have no reading; phases,
        checkpoints and incidents are written at once.
        Raises RunNotFoundError when the recipe is deleted.
        """
        last = None
        async with aclosing(self._changes()) as changes:
            async for _ in changes:
                reading = Reading.of(self.status)
                if reading != last:
                    yield reading
                    last = reading
                if is_over(self._resource) and not is_outdated(self._resource):
                    return
        raise RunNotFoundError(self.namespace, self.name, "was deleted")

    async def history(self) -> History:
        """Incidents, attempts, evaluations, and the timeline with the Events that the cluster still keeps."""
        await self.refresh()
        fields = f"involvedObject.uid={self._resource['metadata']['uid']}"
        async with self._connection.client() as api:
            events = await api.find(EVENTS, self.namespace, fields=fields)
        recovery = self.status.recovery or RecoveryStatus()
        incidents = tuple(recovery.history)
        created = str(self._resource["metadata"]["creationTimestamp"])
        entries = tuple(timeline(self._resource, events))
        validation = self.status.validation
        evaluations = () if validation is None else tuple(validation.evaluations or ())
        return History(recovery, incidents, attempts(created, incidents), entries, evaluations)

    async def loss_points(self) -> "builtins.list[LossPoint]":
        """Loss, learning rate and gradient norm over iterations, from the log of the last rank's pod.

        Iterations before that pod was created, and those that the node has rotated away, are not in it.
        Raises LogUnavailableError without pods.
        """
        pods = await self._pods()
        last = max(newest_by_place(pods), key=node_rank)["metadata"]["name"]
        log = self._connection.log(self.namespace, last, timestamps=True)
        async with aclosing(log) as lines:
            return loss_points([line async for line in lines])

    async def loss(self) -> "pandas.DataFrame":
        """`loss_points` as a DataFrame, by iteration. Raises MissingExtraError without pandas."""
        data_frame([])
        return data_frame(await self.loss_points())

    async def logs(self, *, rank: int | None = None, tail: int | None = None) -> str:
        """The log of the pod that failed first, of the master if none failed, or of the pod of a rank.

        `tail`: number of last lines; None: all. Raises LogUnavailableError.
        """
        pod, previous = await self._log_of(rank)
        log = self._connection.log(self.namespace, pod, previous=previous, tail=tail)
        async with aclosing(log) as lines:
            return "".join([f"{line}\n" async for line in lines])

    async def follow_logs(self, *, rank: int | None = None, tail: int | None = None) -> AsyncGenerator[str]:
        """Lines of the same log as they are written, until the container ends.

        `tail`: number of earlier lines to begin with; None: all. Raises LogUnavailableError.
        """
        pod, previous = await self._log_of(rank)
        log = self._connection.log(self.namespace, pod, previous=previous, tail=tail, follow=not previous)
        async with aclosing(log) as lines:
            async for line in lines:
                yield line

    async def suspend(self) -> "AsyncRun":
        """Release the accelerators and keep everything else. Returns the same run."""
        return await self._patch({"suspend": True})

    async def resume(self) -> "AsyncRun":
        """Continue a suspended run from its newest checkpoint. Returns the same run."""
        return await self._patch({"suspend": False})

    async def delete(self) -> None:
        """Delete the recipe, and with it job and pods; its checkpoints stay unless it sets otherwise.

        Does nothing where this recipe no longer exists: one of the same name that was created since stays.
        """
        async with self._connection.client() as api:
            await api.delete(RECIPES, self._resource)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.namespace}/{self.name}: {self.phase or 'not reconciled yet'}>"

    async def _patch(self, spec: Object) -> "AsyncRun":
        async with self._connection.client() as api:
            try:
                self._resource = await api.patch_spec(self._resource, spec, FIELD_MANAGER)
            except ApiError as error:
                if error.not_found:
                    raise RunNotFoundError(self.namespace, self.name, "does not exist") from None
                if error.status == 422:
                    # Of a wrong value, or of the UID, which is that of another recipe: then this raises.
                    await self.refresh()
                raise
        return self

    async def _changes(self) -> AsyncGenerator[None]:
        """Yield after each change of the recipe, until it is deleted."""
        async with aclosing(self._connection.changes(self.namespace, self.name)) as changes:
            async for resource in changes:
                if resource is None or not self._is_same(resource):
                    return
                self._resource = resource
                yield

    def _is_same(self, resource: Object) -> bool:
        """Whether this is the run's own recipe, and not a later one of its name."""
        return bool(resource["metadata"]["uid"] == self._resource["metadata"]["uid"])

    def _has_reached(self, goal: Phase | Condition) -> bool:
        if isinstance(goal, Condition):
            return condition_of(self._resource, goal).get("status") == "True"
        if goal in _COURSE and goal not in _WAITING and self.phase in _COURSE:
            return _COURSE.index(Phase(self.phase)) >= _COURSE.index(goal)
        return self.phase == goal

    def _ended(self, goal: Phase | Condition) -> RunEndedError:
        phase, recovery = str(self.phase), self.status.recovery
        incident = None if recovery is None else recovery.last_incident
        if phase == Phase.SUCCEEDED:
            message = f"has succeeded, and is not {goal}"
            return RunEndedError(self.namespace, self.name, message, phase, incident)
        text = _reason(self._resource)
        if incident is not None:
            cost = incident_cost(incident.wire())
            text += f"; last incident {incident.number} ({incident.kind}): {incident.cause}"
            text += f" ({cost})" if cost else ""
        return RunFailedError(self.namespace, self.name, f"{phase}: {text}", phase, incident)

    async def _pods(self) -> "builtins.list[Object]":
        await self.refresh()
        async with self._connection.client() as api:
            found = await api.find(PODS, self.namespace, labels=trainer_selector(self.name))
        pods = own_pods(self._resource, found)
        if not pods:
            raise LogUnavailableError(
                self.namespace, self.name, f"has no pods (phase {self.phase}); see history()"
            )
        return pods

    async def _log_of(self, rank: int | None) -> tuple[str, bool]:
        """Name of the pod, and whether the log is that of its container's previous instance."""
        pods = await self._pods()
        if rank is None:
            found = first_failed_pod(self._resource, pods)
        else:
            found = pod_of_rank(self._resource, pods, rank)
        if found is None:
            raise LogUnavailableError(self.namespace, self.name, f"has no pod of rank {rank}")
        return found.pod, found.previous


def _one_of[E: (Phase, Condition)](kind: type[E], name: str) -> E:
    try:
        return kind(name)
    except ValueError:
        known = ", ".join(kind)
        raise ValueError(f"unknown {kind.__name__.lower()} {name!r}; use one of {known}") from None


async def _read(connection: AsyncConnection, namespace: str, name: str) -> Object:
    async with connection.client() as api:
        found = await api.get(RECIPES, namespace, name)
    if found is None:
        raise RunNotFoundError(namespace, name, "does not exist")
    return found


def _reason(resource: Object) -> str:
    """The message of the condition that explains why the run has ended."""
    explaining = ((Condition.FAILED, "True"), (Condition.PLANNED, "False"), (Condition.STALLED, "True"))
    for kind, value in explaining:
        found = condition_of(resource, kind)
        if found.get("status") == value:
            return str(found.get("message") or found.get("reason"))
    return "no condition gives the reason"
