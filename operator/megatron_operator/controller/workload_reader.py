"""Reads what Kueue keeps of a job in a queue, to report why it is not admitted."""

import logging

from megatron_operator.api.conditions import Condition
from megatron_operator.api.reasons import Reason
from megatron_operator.api.times import seconds
from megatron_operator.controller.api_client import ApiClient, ApiError
from megatron_operator.controller.api_resources import WORKLOADS
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


class WorkloadReader:
    """Reads the Workloads of jobs in a queue, the less often the longer they wait.

    Kueue's reason alone causes no reconcile, so a run in the caches is read again when that is due.
    """

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._due: dict[RecipeKey, tuple[str, float]] = {}
        """UID of the job of which the Workload is to be read again, and when, seconds since the epoch."""

    def is_due(self, status: StatusBuilder, snapshot: RunSnapshot) -> bool:
        """Whether the Workload of the run's training job is to be read again."""
        if not _waits(snapshot):
            return False
        job = snapshot.existing_job
        due = self._next(status.key, job)
        if due is None:
            due = self._set_next(status, Condition.RUNNING, job)
        return status.now >= due

    async def held_back(self, status: StatusBuilder, condition: Condition, job: Object | None) -> str | None:
        """Why Kueue does not admit a suspended job, empty without a reason; None where it is not read now.

        `condition` is the one that reports the wait. Nothing depends on the reason, which explains a wait: a
        cluster may have another version of Kueue, or none.
        """
        if job is None or LABEL_QUEUE not in (job["metadata"].get("labels") or {}):
            return None
        due, reported = self._next(status.key, job), status.condition(condition)
        if due is not None and status.now < due and reported is not None and reported.reason == Reason.QUEUED:
            return None
        metadata = job["metadata"]
        selector = f"{LABEL_JOB_UID}={metadata['uid']}"
        try:
            workloads = await self._api.find(WORKLOADS, metadata["namespace"], labels=selector)
        except ApiError as error:
            if error.not_found or error.refused:
                self._set_next(status, condition, job)
                return ""
            log.warning("%s/%s: cannot read its Workload: %s", metadata["namespace"], metadata["name"], error)
            return None
        self._set_next(status, condition, job)
        return reason_not_admitted(job, workloads, status.now)

    def forget(self, key: RecipeKey) -> None:
        """Drop what is kept about a recipe."""
        self._due.pop(key, None)

    def _next(self, key: RecipeKey, job: Object) -> float | None:
        uid, due = self._due.get(key, ("", 0.0))
        return due if uid == job["metadata"]["uid"] else None

    def _set_next(self, status: StatusBuilder, condition: Condition, job: Object) -> float:
        reported = status.condition(condition)
        queued = reported is not None and reported.reason == Reason.QUEUED
        times = [
            job["metadata"].get("creationTimestamp"),
            reported.last_transition_time if reported is not None and queued else None,
        ]
        since = max((seconds(each) or 0.0 for each in times if each), default=status.now)
        due = status.now + reread_after(status.now - since)
        self._due[status.key] = job["metadata"]["uid"], due
        return due


def _waits(snapshot: RunSnapshot) -> bool:
    return snapshot.job_phase is JobPhase.SUSPENDED and snapshot.queue is not None
