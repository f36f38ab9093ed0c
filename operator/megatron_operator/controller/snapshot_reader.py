"""Reads everything that the cluster holds of one run."""

from dataclasses import replace
from typing import Final

from megatron_operator.api.conditions import Condition
from megatron_operator.api.errors import OperatorError
from megatron_operator.api.labels import LABEL_ROLE
from megatron_operator.controller.api_client import ApiClient
from megatron_operator.controller.api_resources import BATCH_JOBS, TRAINING_JOBS, templates_of
from megatron_operator.controller.children import pods_of_role
from megatron_operator.controller.device_reader import DeviceReader
from megatron_operator.controller.job_events import JobEvents
from megatron_operator.controller.list_limit import ListLimit
from megatron_operator.controller.node_reader import NodeReader
from megatron_operator.controller.node_watch import NodeWatch
from megatron_operator.controller.object_cache import Caches
from megatron_operator.controller.pod_end_cache import PodEndCache
from megatron_operator.controller.progress_poller import ProgressPoller
from megatron_operator.controller.termination_events import ends_from_events
from megatron_operator.controller.workload_reader import WorkloadReader
from megatron_operator.lifecycle.children import recorded_kind
from megatron_operator.lifecycle.ended_pods import recorded_ends
from megatron_operator.lifecycle.node_health import suspects
from megatron_operator.lifecycle.object_metadata import Object, is_deleting
from megatron_operator.lifecycle.ownership import Ownership, ownership
from megatron_operator.lifecycle.snapshot import RunSnapshot
from megatron_operator.lifecycle.status_builder import RecipeKey, StatusBuilder
from megatron_operator.lifecycle.status_update import (
    recorded_early_exit,
    replacement_pods,
    uncounted_pods,
)
from megatron_operator.lifecycle.undisturbed import is_new, is_undisturbed
from megatron_operator.manifests import jobset, object_name, trainjob
from megatron_operator.manifests.job_backend import JobPhase
from megatron_operator.manifests.job_backends import backend_of, newest_by_place, node_rank
from megatron_operator.manifests.metadata import ROLE_TRAINER

OPTIONS: Final = {jobset.KIND: "jobSets", trainjob.KIND: "trainJobs"}
"""Kind of training job -> value of the chart with which it is handled; the flag is the same in lower case."""


class JobKindDisabledError(OperatorError):
    """The run has a job of a kind that this operator does not handle."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"the run has a {kind}, which trains on, and this operator does not handle {kind}s; set "
            f"`{OPTIONS[kind]}` of the chart, which starts it with --{OPTIONS[kind].lower()}"
        )


class TemplatesMissingError(OperatorError):
    """The object with the pod templates of the run's job is gone, so that the job cannot be judged."""

    def __init__(self, job: Object, plural: str) -> None:
        kind, name = backend_of(job).KIND, job["metadata"]["name"]
        super().__init__(
            f"{plural}/{name}, which {kind} {name} takes its pods from, does not exist; delete the {kind}, "
            "and both are created again"
        )


class SnapshotReader:
    """Reads snapshots. Termination messages are cached because they vanish with the pod.

    The cache may be lost: then the cause of a restart is less precise, and nothing else changes. The ends of
    pods that the operator itself deletes are in the status.
    """

    def __init__(
        self,
        api: ApiClient,
        nodes: NodeReader,
        poller: ProgressPoller,
        caches: Caches,
        watch: NodeWatch | None = None,
        devices: DeviceReader | None = None,
    ) -> None:
        self._api = api
        self._caches = caches
        self._devices = devices
        self._nodes = nodes
        self._watch = watch
        self._poller = poller
        self._limit = ListLimit()
        self.events = JobEvents(api)
        self.workloads = WorkloadReader(api)
        self.pod_ends = PodEndCache(None if devices is None else devices.eviction_cause)
        self._incomplete: dict[RecipeKey, int] = {}
        """Number of pods of the runs that lacked some when they were read last."""

    def job_created(self, key: RecipeKey) -> None:
        """A job without pods was created for this run."""
        self._incomplete[key] = 0

    def forget(self, key: RecipeKey) -> None:
        """Drop what is cached of a run."""
        self.pod_ends.drop(key)
        self._incomplete.pop(key, None)
        self.workloads.forget(key)
        if self._devices is not None:
            self._devices.forget(key)

    async def read_job(self, status: StatusBuilder) -> Object | None:
        """The training job, of whichever handled kind it was created, without what `read` attaches to it.

        One of somebody else only where no other kind has the recipe's own.
        """
        namespace, name = status.key
        handled = self._caches.jobs
        kind, foreign = recorded_kind(status), None
        others = () if self._caches.first_runs.is_first(status.key) else handled
        for each in dict.fromkeys((kind, *others)):
            if each not in handled:
                continue
            job = await self._api.get(TRAINING_JOBS[each], namespace, object_name(name))
            if job is not None and ownership(job, status) is not Ownership.FOREIGN:
                return job
            foreign = foreign or (job if each == kind else None)
        return foreign

    async def _with_templates(self, status: StatusBuilder, job: Object) -> Object:
        """The job with its pod templates, where another object has them.

        Raises TemplatesMissingError, except for a run that has ended.
        """
        resource, metadata = templates_of(job), job["metadata"]
        if resource is None or is_deleting(job) or ownership(job, status) is Ownership.FOREIGN:
            return job
        source = await self._api.get(resource, metadata["namespace"], metadata["name"])
        if source is not None:
            return backend_of(job).with_templates(job, source)
        if status.ended:
            return job
        raise TemplatesMissingError(job, resource.plural)

    async def read(self, status: StatusBuilder) -> RunSnapshot:
        """The run as it is now.

        Raises TemplatesMissingError, ListsLimitedError while the API server answers slowly, and
        JobKindDisabledError for a run that has not ended and has a job of a kind that is not handled.
        """
        key = status.key
        if (kind := recorded_kind(status)) not in self._caches.jobs and not status.ended:
            raise JobKindDisabledError(kind)
        first = self._caches.first_runs.is_first(key)
        job = await self.read_job(status)
        if job is not None:
            job = await self._with_templates(status, job)
        # After the job: where there is none, no pod of it can appear any more.
        trainers = [] if first and job is None else await self._trainers(status)
        if self._devices is not None:
            await self._devices.read(key, trainers)
        nodes = await self._nodes.of(trainers, status.now, suspects(status.recovery))
        snapshot = replace(self._snapshot(status, job, trainers), nodes=nodes)
        if snapshot.job_phase is JobPhase.SUSPENDED:
            held_back = await self.workloads.held_back(status, Condition.RUNNING, snapshot.job)
            snapshot = replace(snapshot, held_back=held_back)
        if self._creation_stands_still(key, snapshot):
            snapshot = replace(snapshot, events=await self.events.of(snapshot.existing_job))
        snapshot = await self._with_pods_of_deleted_jobs(status, snapshot)
        return await self._with_ends_from_events(status, snapshot)

    async def _trainers(self, status: StatusBuilder) -> list[Object]:
        async with self._limit.turn():
            return await pods_of_role(self._api, status, ROLE_TRAINER)

    def _creation_stands_still(self, key: RecipeKey, snapshot: RunSnapshot) -> bool:
        """Whether the run lacks pods, and has no more of them than when it was read last, if it was.

        Only then are Events read: the API server goes through all of the namespace.
        """
        if snapshot.job_phase is not JobPhase.ACTIVE or len(snapshot.pods) >= snapshot.size:
            self._incomplete.pop(key, None)
            return False
        count = len(snapshot.pods)
        before, self._incomplete[key] = self._incomplete.get(key, count), count
        return before == count

    def from_cache(self, status: StatusBuilder) -> RunSnapshot | None:
        """The run as the watches delivered it, without any request.

        None where its kind of job is not watched or its pods are too large to keep, and unless it trains,
        starts or waits in a queue undisturbed. Also where it is time to read why it is still queued.

        A new recipe whose name had no run has neither job nor pods, whatever the watches have delivered. A
        job of somebody else is found when it is created.
        """
        key = status.key
        if is_new(status.body):
            return self._snapshot(status, None, []) if self._caches.first_runs.is_first(key) else None
        jobs = self._caches.jobs.get(recorded_kind(status))
        if jobs is None:
            return None
        job = jobs.get(key.namespace, object_name(key.name))
        pods = self._caches.pods.of_recipe(key)
        if pods is None:
            return None
        trainers = [pod for pod in pods if pod["metadata"]["labels"].get(LABEL_ROLE) == ROLE_TRAINER]
        if self._devices is not None and self._devices.unread(key, trainers):
            return None
        snapshot = replace(self._snapshot(status, job, trainers), cached=True)
        if not is_undisturbed(status, snapshot) or self.workloads.is_due(status, snapshot):
            return None
        return snapshot

    def _snapshot(self, status: StatusBuilder, job: Object | None, trainers: list[Object]) -> RunSnapshot:
        key = status.key
        own = [] if job is None else [pod for pod in trainers if backend_of(job).owns(job, pod)]
        current = newest_by_place(own)
        if len(current) < len(own):
            for pod in own:
                if pod not in current:
                    self.pod_ends.add(key, pod)
        snapshot = RunSnapshot(
            now=status.now,
            job=job,
            pods=tuple(sorted(current, key=node_rank)),
            leftover_pods=tuple(pod for pod in trainers if pod not in own),
            reading=self._poller.reading(key),
            silence=self._poller.silence(key),
            ends=self.pod_ends.merged(key, recorded_ends(status, job), status.recovery.pods_as_of),
            left_early=recorded_early_exit(status, job),
        )
        if job is None:
            return snapshot
        if self._watch is None:  # What was recorded with it ends.
            return replace(snapshot, announcing={})
        recorded, avoided = status.recovery.maintenance, frozenset(status.recovery.nodes_avoided)
        nodes = self._watch.of(key, snapshot.placed_on | recorded.keys() | avoided)
        if nodes is not None:
            snapshot = replace(snapshot, nodes_gone=avoided - nodes.keys())
        if self._devices is not None and nodes is not None:
            tainted = self._devices.signs(key, snapshot.active_pods, recorded)
            nodes |= {name: replace(nodes[name], devices=tainted[name]) for name in tainted.keys() & nodes}
        return replace(snapshot, announcing=nodes)

    async def _with_pods_of_deleted_jobs(self, status: StatusBuilder, snapshot: RunSnapshot) -> RunSnapshot:
        """Add which new pods will be deleted with their batch Jobs, and are not to be counted.

        A Job may replace a failed pod itself in the moment in which it is deleted for that, or later, where
        its controller has not noticed the deletion: after an outage of the API server for example.
        """
        if snapshot.job_phase is not JobPhase.ACTIVE or snapshot.backend.REPLACES_PODS:
            return snapshot
        new = uncounted_pods(status.recovery, snapshot)
        if not new:
            return snapshot
        labels = f"{snapshot.backend.LABEL_JOB_NAME}={snapshot.name}"
        jobs = await self._api.metadata(BATCH_JOBS, status.key.namespace, labels=labels)
        staying = {metadata["uid"] for metadata in jobs if "deletionTimestamp" not in metadata}
        of_jobs = ((pod, snapshot.backend.replaced_with(pod)) for pod in new)
        going = {
            pod["metadata"]["uid"]
            for pod, job in of_jobs
            if job is not None and job["metadata"]["uid"] not in staying
        }
        return replace(snapshot, pods_of_deleted_jobs=frozenset(going))

    async def _with_ends_from_events(self, status: StatusBuilder, snapshot: RunSnapshot) -> RunSnapshot:
        """Add how pods ended that were replaced while the operator was not running."""
        recorded = status.current.job
        if snapshot.job is None or recorded is None or recorded.uid != snapshot.job_uid:
            return snapshot
        new = replacement_pods(status.recovery, snapshot)
        if not new:
            return snapshot
        since = status.recovery.pods_as_of or ""
        placement = status.recovery.placement
        found = await ends_from_events(self._api, snapshot, new, since, placement)
        return replace(snapshot, ends={**snapshot.ends, **found})
