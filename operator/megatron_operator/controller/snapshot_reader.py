"""Reads everything that the cluster holds of one run."""

from dataclasses import replace

from megatron_operator.controller.api_client import EVENTS, JOBS, ApiClient
from megatron_operator.controller.children import pods_of_role
from megatron_operator.controller.node_reader import NodeReader
from megatron_operator.controller.progress_poller import ProgressPoller
from megatron_operator.controller.termination_events import ends_from_events
from megatron_operator.lifecycle.node_health import suspects
from megatron_operator.lifecycle.object_metadata import Object, owned_by
from megatron_operator.lifecycle.pod_termination import PodEnd, pod_end
from megatron_operator.lifecycle.snapshot import RunSnapshot
from megatron_operator.lifecycle.status_builder import RecipeKey, StatusBuilder
from megatron_operator.lifecycle.status_update import replacement_pods
from megatron_operator.manifests import object_name, pytorchjob
from megatron_operator.manifests.metadata import ROLE_TRAINER
from megatron_operator.manifests.pytorchjob import JobPhase


class SnapshotReader:
    """Reads snapshots. Termination messages are cached because they vanish with the pod.

    The cache may be lost: then the cause of a restart is less precise, and nothing else changes.
    """

    def __init__(self, api: ApiClient, nodes: NodeReader, poller: ProgressPoller) -> None:
        self._api = api
        self._nodes = nodes
        self._poller = poller
        self._ends: dict[RecipeKey, dict[str, PodEnd]] = {}

    def cache_pod_end(self, key: RecipeKey, pod: Object) -> None:
        """Cache how a pod ended, if it has ended."""
        job_name = (pod["metadata"].get("labels") or {}).get(pytorchjob.LABEL_JOB_NAME)
        end = pod_end(pod, job_name) if job_name else None
        if end is None:
            return
        known = self._ends.setdefault(key, {})
        name = pod["metadata"]["name"]
        # A deletion after the end adds nothing.
        if end.exit_code is not None or name not in known:
            known[name] = end

    def drop_pod_ends(self, key: RecipeKey) -> None:
        """Drop the cached ends of a run's pods, once they are recorded in its status."""
        self._ends.pop(key, None)

    async def read_job(self, key: RecipeKey) -> Object | None:
        """The training job."""
        return await self._api.get(JOBS, key.namespace, object_name(key.name))

    async def read(self, status: StatusBuilder) -> RunSnapshot:
        """The run as it is now."""
        key = status.key
        job = await self.read_job(key)
        trainers = await pods_of_role(self._api, status, ROLE_TRAINER)
        uid = None if job is None else job["metadata"]["uid"]
        own = [pod for pod in trainers if uid is not None and owned_by(pod, uid)]
        snapshot = RunSnapshot(
            now=status.now,
            job=job,
            pods=tuple(sorted(own, key=pytorchjob.node_rank)),
            leftover_pods=tuple(pod for pod in trainers if pod not in own),
            reading=self._poller.reading(key),
            silence=self._poller.silence(key),
            ends=dict(self._ends.get(key, {})),
            nodes=await self._nodes.of(trainers, status.now, suspects(status.recovery)),
        )
        if snapshot.job_phase is JobPhase.ACTIVE and len(snapshot.pods) < snapshot.size:
            selector = f"involvedObject.uid={uid},type=Warning"
            snapshot = replace(
                snapshot, events=tuple(await self._api.find(EVENTS, key.namespace, fields=selector))
            )
        return await self._with_ends_from_events(status, snapshot)

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
