"""Reads what Kueue keeps of a job in a queue, to report why it is not admitted."""

import logging

from megatron_operator.api.conditions import Condition
from megatron_operator.api.reasons import Reason
from megatron_operator.api.times import seconds
from megatron_operator.controller.api_client import WORKLOADS, ApiClient, ApiError
from megatron_operator.lifecycle.admission import (
    LABEL_JOB_UID,
    reason_not_admitted,
    reread_after,
)
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.snapshot import RunSnapshot
from megatron_operator.lifecycle.status_builder import RecipeKey, StatusBuilder
from megatron_operator.manifests.job_backend import LABEL_QUEUE, JobPhase

log = logging.getLogger(__name__)


async def held_back(api: ApiClient, job: Object, now: float) -> str | None:
    """Why Kueue does not admit a suspended job, empty without a reason; None where no Workload can be read.

    It explains a wait, and nothing depends on it: a cluster may have another version of Kueue, or none.
    """
    metadata = job["metadata"]
    if LABEL_QUEUE not in (metadata.get("labels") or {}):
        return None
    selector = f"{LABEL_JOB_UID}={metadata['uid']}"
    try:
        workloads = await api.find(WORKLOADS, metadata["namespace"], labels=selector)
    except ApiError as error:
        if not (error.not_found or error.refused):
            log.warning("%s/%s: cannot read its Workload: %s", metadata["namespace"], metadata["name"], error)
        return None
    return reason_not_admitted(job, workloads, now)


class WorkloadReader:
    """Reads the Workloads of training jobs, the less often the longer they are queued.

    Kueue's reason alone causes no reconcile, so a run in the caches is read again when that is due.
    """

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._due: dict[RecipeKey, float] = {}

    def is_due(self, status: StatusBuilder, snapshot: RunSnapshot) -> bool:
        """Whether the Workload of this run is to be read again."""
        if not _waits(snapshot):
            self._due.pop(status.key, None)
            return False
        return status.now >= self._due.setdefault(status.key, _next_read(status))

    async def held_back(self, status: StatusBuilder, snapshot: RunSnapshot) -> str | None:
        """Why Kueue does not admit the run's job; as of `held_back`, and None where the job is not queued."""
        if not _waits(snapshot):
            self._due.pop(status.key, None)
            return None
        self._due[status.key] = _next_read(status)
        return await held_back(self._api, snapshot.existing_job, status.now)

    def forget(self, key: RecipeKey) -> None:
        """Drop what is kept about a recipe."""
        self._due.pop(key, None)


def _next_read(status: StatusBuilder) -> float:
    condition = status.condition(Condition.RUNNING)
    queued = condition is not None and condition.reason == Reason.QUEUED
    since = seconds(condition.last_transition_time) if condition is not None and queued else None
    return status.now + reread_after(status.now - (since or status.now))


def _waits(snapshot: RunSnapshot) -> bool:
    return snapshot.job_phase is JobPhase.SUSPENDED and snapshot.queue is not None
