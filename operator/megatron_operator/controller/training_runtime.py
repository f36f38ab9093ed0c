"""What precedes a TrainJob: its TrainingRuntime, and the end of the JobSet of an earlier job of its name."""

import asyncio
from typing import Final

from megatron_operator.api.reasons import Reason
from megatron_operator.controller.api_client import ApiClient, ApiError
from megatron_operator.controller.api_resources import JOBSETS, TRAINING_JOBS, TRAINING_RUNTIMES, Resource
from megatron_operator.lifecycle.actions import SOON
from megatron_operator.lifecycle.children import (
    job_obstacle,
    jobset_obstacle,
    runtime_body,
    runtime_obstacle,
)
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.ownership import Obstacle
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.manifests import trainjob

NOT_SEEN: Final = "trainingRuntime must be created before"
"""In the refusal of a TrainJob by Trainer's webhook, which reads runtimes from a cache."""
PAUSES: Final = (0.05, 0.1, 0.2, 0.4)
"""Seconds between attempts to create a TrainJob whose runtime Trainer has not seen yet."""


async def ensure_runtime(api: ApiClient, status: StatusBuilder, runtime: Object) -> Obstacle | None:
    """Create the runtime, or change the recipe's own, which no TrainJob uses now; why that has to wait.

    Trainer takes a JobSet of the TrainJob's name for its own and copies its state, so none may be left.
    """
    namespace, name = runtime["metadata"]["namespace"], runtime["metadata"]["name"]
    job = await api.get(TRAINING_JOBS[trainjob.KIND], namespace, name)
    if job is not None and (obstacle := job_obstacle(status, job)) is not None:
        return obstacle
    left = await api.get(JOBSETS, namespace, name)
    if left is not None:
        return jobset_obstacle(status, left)
    existing = await api.get(TRAINING_RUNTIMES, namespace, name)
    try:
        if existing is None:
            await api.create(TRAINING_RUNTIMES, runtime)
        elif (obstacle := runtime_obstacle(status, existing)) is not None:
            return obstacle
        elif (body := runtime_body(existing, runtime)) is not None:
            await api.replace(TRAINING_RUNTIMES, body)
    except ApiError as error:
        if not error.conflict:
            raise
        message = f"TrainingRuntime {name} has just been changed by somebody else"
        return Obstacle(Reason.JOB_REFUSED, message, SOON)
    return None


async def create_train_job(api: ApiClient, resource: Resource, job: Object) -> Object:
    """Create a TrainJob right after its runtime. Raises ApiError."""
    for pause in PAUSES:
        try:
            return await api.create(resource, job)
        except ApiError as error:
            if not (error.refused and NOT_SEEN in error.message):
                raise
        await asyncio.sleep(pause)
    return await api.create(resource, job)
