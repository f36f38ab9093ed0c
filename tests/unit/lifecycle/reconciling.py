"""Reconciles a run that is kept in memory."""

from typing import Any

from megatron_operator.api.conditions import Condition
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.lifecycle.status_update import update_status


def reconcile(run: Any) -> StatusBuilder:
    status: StatusBuilder = run.status()
    update_status(status, run.snapshot())
    run.write(status)
    return status


def reason(status: StatusBuilder, kind: Condition) -> str | None:
    condition = status.condition(kind)
    return condition.reason if condition else None
