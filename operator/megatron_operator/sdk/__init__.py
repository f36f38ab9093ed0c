"""Recipes and runs as Python objects, for scripts, pipelines and notebooks. docs/python.md has examples."""

from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.errors import FieldError, InvalidRecipeError, OperatorError
from megatron_operator.controller.api_client import ApiError
from megatron_operator.sdk.async_run import AsyncRun
from megatron_operator.sdk.connection import AsyncConnection
from megatron_operator.sdk.errors import (
    ApplyConflictError,
    ClusterUnreachableError,
    LogUnavailableError,
    MissingExtraError,
    RunEndedError,
    RunError,
    RunFailedError,
    RunNotFoundError,
    WaitTimeoutError,
)
from megatron_operator.sdk.losses import LossPoint
from megatron_operator.sdk.readings import Attempt, History, Reading
from megatron_operator.sdk.recipe import Recipe, RecipePlan
from megatron_operator.sdk.run import Connection, Run

__all__ = [
    "ApiError",
    "ApplyConflictError",
    "AsyncConnection",
    "AsyncRun",
    "Attempt",
    "ClusterUnreachableError",
    "Condition",
    "Connection",
    "FieldError",
    "History",
    "InvalidRecipeError",
    "LogUnavailableError",
    "LossPoint",
    "MissingExtraError",
    "OperatorError",
    "Phase",
    "Reading",
    "Recipe",
    "RecipePlan",
    "Run",
    "RunEndedError",
    "RunError",
    "RunFailedError",
    "RunNotFoundError",
    "WaitTimeoutError",
]
