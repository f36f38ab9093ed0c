"""The operator's own parts over a simulated cluster: everything but kopf, HTTP and the API client is real."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from megatron_contract.progress import ProgressReport
from megatron_operator import catalog
from megatron_operator.api.conditions import Phase
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.labels import LABEL_RECIPE
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.recovery_status import RecoveryStatus
from megatron_operator.controller import (
    cluster_reader,
    collection_watch,
    node_reader,
    room_finder,
    supervisor,
)
from megatron_operator.controller.capacity_finder import CapacityFinder
from megatron_operator.controller.children import Children
from megatron_operator.controller.cordoner import Cordoner
from megatron_operator.controller.node_reader import NodeReader
from megatron_operator.controller.node_watch import NodeWatch
from megatron_operator.controller.object_cache import Caches
from megatron_operator.controller.recipe_planner import RecipePlanner
from megatron_operator.controller.reconciler import Reconciler
from megatron_operator.controller.snapshot_reader import SnapshotReader
from megatron_operator.controller.stages import Stages
from megatron_operator.controller.supervisor import Supervisor
from megatron_operator.lifecycle.desired import (
    Config,
    DesiredState,
    can_continue_with,
    desired_state,
    planning_input,
)
from megatron_operator.lifecycle.incident_traces import IncidentTrace
from megatron_operator.lifecycle.observation import Limits, Observation
from megatron_operator.lifecycle.progress_reading import ProgressReading
from megatron_operator.lifecycle.recovery_policy import Decision, decide
from megatron_operator.lifecycle.status_builder import RecipeKey, StatusBuilder

from tests.unit.controller.api_in_memory import NAME, NAMESPACE, UID, ApiInMemory, KilledError
from tests.unit.controller.simulated_cluster import TOTAL, Cluster

KEY = RecipeKey(NAMESPACE, NAME)
CONFIG = Config(
    PlatformConfig.model_validate({"accelerators": {"h100-sxm": {}}, "image": "trainer"}), catalog.load()
)


def recipe_spec(count: int, limits: Limits | None = None) -> dict[str, Any]:
    """A recipe for `count` accelerators with these recovery limits."""
    spec: dict[str, Any] = {
        "recipe": "llama3-8b",
        "accelerator": {"type": "h100-sxm", "count": count},
        "data": {"mockData": True},
    }
    if limits is not None:
        spec["recovery"] = {
            "maxRestarts": limits.max_restarts,
            "nodes": {"avoidAfter": limits.avoid_after},
        }
        if (elastic := limits.elastic) is not None:
            spec["recovery"]["elastic"] = {
                "minCount": elastic.min_count,
                "shrinkAfter": int(elastic.shrink_after),
                "growAfter": int(elastic.grow_after),
            }
    return spec


@cache
def has_plan(requested: int, count: int) -> bool:
    """Whether the planner has a plan on `count` accelerators with the batch of all `requested`."""

    def batch(on: int) -> int:
        metadata = {"name": NAME, "namespace": NAMESPACE, "uid": UID}
        status = StatusBuilder.of({"metadata": metadata, "spec": recipe_spec(requested)}, 0.0)
        return desired_state(status, CONFIG, on).plan.global_batch_size

    try:
        return batch(count) == batch(requested)
    except InvalidRecipeError:
        return False


class ProgressInMemory:
    """Stands in for the progress poller."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self.cluster, self._clock = cluster, clock
        self._reading: ProgressReading | None = None
        self._moved: tuple[Any, float] = (None, 0.0)
        self._answered_at = 0.0
        self.resting = False

    def poll(self) -> None:
        """Take the answer of the pods."""
        cluster = self.cluster
        phase = "rendezvous"
        if cluster.training:
            phase = "evaluating" if cluster.evaluating else "training"
        motion = (phase, cluster.iteration, cluster.generation)
        if motion != self._moved[0]:
            self._moved = motion, cluster.now
        report = {
            "schema": 1,
            "phase": phase,
            "iteration": cluster.iteration,
            "trainIters": TOTAL,
            "generation": cluster.generation,
            "stepSeconds": 1.0,
            "resumedFrom": cluster.resumed_from,
            "checkpointIteration": cluster.checkpoint or None,
            "incidents": cluster.incidents,
        }
        unchanged = cluster.now - self._moved[1]
        unmoved = 0.0 if phase == "evaluating" else unchanged
        self._reading = ProgressReading(
            ProgressReport.parse(report), 0.0, unchanged=unchanged, unmoved=unmoved
        )
        self._answered_at = cluster.now

    def reading(self, _key: RecipeKey) -> ProgressReading | None:
        if self._reading is None:
            return None
        return replace(self._reading, answered=self._clock() - (self.cluster.now - self._answered_at))

    def silence(self, _key: RecipeKey) -> None: ...

    def watch(self, _key: RecipeKey, _targets: object) -> None: ...

    def rest(self, _key: RecipeKey, resting: bool) -> None:
        self.resting = resting

    def forget(self, _key: RecipeKey) -> None:
        self._reading = None


class ConfigInMemory:
    revision = 1

    async def valid_platform(self) -> PlatformConfig | None:
        return CONFIG.platform


class PlanningInProcess:
    """Stands in for the planning process, whose start would take longer than most tests."""

    revision = 0

    async def desired(self, status: StatusBuilder) -> DesiredState:
        return desired_state(planning_input(status), CONFIG)

    async def can_continue_on(self, status: StatusBuilder, count: int) -> bool:
        try:
            return can_continue_with(status, desired_state(planning_input(status), CONFIG, count))
        except InvalidRecipeError:
            return False

    def forget(self, _key: RecipeKey) -> None: ...


class WholeOperator:
    """An operator that can be killed between any two writes. `check` sees every decision."""

    def __init__(
        self,
        api: ApiInMemory,
        check: Callable[[Observation, Decision], None],
        planning: Any = None,
        *,
        behind: bool = True,
    ) -> None:
        self.api, self._check, self.planning = api, check, planning
        self._behind = behind
        self.reachable = True
        """Whether the operator reaches the pods."""
        self.traces: list[IncidentTrace] = []
        """What all its processes have sent."""
        self.runner = asyncio.Runner()
        clock: Any = SimpleNamespace(monotonic=lambda: api.cluster.now)
        self._patches: list[Any] = [
            patch.object(node_reader, "time", clock),
            patch.object(collection_watch, "time", clock),
            patch.object(cluster_reader, "time", clock),
            patch.object(room_finder, "time", clock),
            patch.object(supervisor, "decide", self._decide),
        ]
        for each in self._patches:
            each.start()
        self._start()

    def _start(self) -> None:
        api: Any = self.api
        config: Any = ConfigInMemory()
        self._progress = ProgressInMemory(self.api.cluster, self.api.clock.now)
        poller: Any = self._progress
        self._watch = NodeWatch(api, lambda _key: None)
        nodes = NodeReader(api, self._watch, allowed=True)
        self.caches = Caches()
        self._undelivered: tuple[list[Any], ...] = ([], [], [])
        self._version = 1
        """Of the jobs and pods that the watches delivered last."""
        self._snapshots = SnapshotReader(api, nodes, poller, self.caches, self._watch)
        planning: Any = self.planning or PlanningInProcess()
        capacity = CapacityFinder(api, planning, self._watch, self.caches, allowed=True)
        traces: Any = SimpleNamespace(send=self.traces.append)
        self._reconciler = Reconciler(
            api,
            RecipePlanner(planning, config),
            self._snapshots,
            Children(api, capacity, self.caches.first_runs),
            Stages(api, nodes, poller, self._snapshots.workloads, self._snapshots.events),
            Supervisor(poller, capacity, Cordoner(api, config)),
            poller,
            self.caches,
            traces,
        )

    def close(self) -> None:
        for each in self._patches:
            each.stop()
        self.runner.close()

    def _decide(self, observation: Observation) -> Decision:
        decision = decide(observation)
        self._check(observation, decision)
        return decision

    def die_after(self, writes: int | None) -> None:
        """Kill the operator before the write after so many; None lets it live."""
        self.api.writes_left = writes

    @property
    def rests(self) -> bool:
        """Whether iterations alone cause no reconcile."""
        return self._progress.resting

    @property
    def recovery(self) -> RecoveryStatus:
        status = self.api.recipe.get("status") or {}
        return RecoveryStatus.model_validate(status.get("recovery") or {})

    @property
    def end(self) -> str | None:
        """The phase of a run that has ended."""
        phase = (self.api.recipe.get("status") or {}).get("phase")
        return phase if phase in (Phase.SUCCEEDED, Phase.FAILED) else None

    def _deliver(self) -> None:
        """The watches deliver what has changed; where they are `behind`, that of the last reconcile."""
        if not self._behind:
            self.runner.run(self._watch.refresh())
        current = self._current()
        delivered = self._undelivered if self._behind else current
        self._undelivered = current
        for kind, objects in zip(self.caches.all, delivered, strict=True):
            for (namespace, name), _ in kind.identities():
                if name not in [each["metadata"]["name"] for each in objects]:
                    kind.discard(namespace, name)
            for each in objects:
                kind.put(each)

    def _current(self) -> tuple[list[Any], ...]:
        api = self.api
        self._version += 1
        job, version = api.job(), {"resourceVersion": str(self._version)}
        pods = [api.pod(pod) for pod in api.cluster.pods]
        return (
            [api.recipe],
            [
                each | {"metadata": each["metadata"] | version}
                for each in ([] if job is None else [job])
                if LABEL_RECIPE in each["metadata"].get("labels", {})
            ],
            [pod | {"metadata": pod["metadata"] | version} for pod in pods],
        )

    def reconcile(self) -> None:
        """One reconcile, after the watches have delivered how pods ended."""
        cluster = self.api.cluster
        self._deliver()
        for pod in cluster.pods:
            self._snapshots.pod_ends.add(KEY, self.api.pod(pod))
        if self.reachable and cluster.alive():
            self._progress.poll()
        deleting = any(pod.deleted_at is not None for pod in cluster.pods)
        self.api.deleted.clear()
        try:
            self.runner.run(self._reconciler(KEY))
        except KilledError:
            self._start()
        if self._behind:
            self.runner.run(self._watch.refresh())
        continues_restart = self.recovery.restart_before is not None
        assert not (deleting and self.api.deleted) or continues_restart, (
            "deletes while pods are being deleted"
        )
