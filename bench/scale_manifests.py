"""What operators make of a recipe of the bench, planned once for all of them."""

import json
import time
from typing import Final

from megatron_operator import catalog
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.reasons import Reason
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.accepted_spec import record_accepted
from megatron_operator.lifecycle.desired import Config, desired_state, planning_input
from megatron_operator.lifecycle.job_status import (
    adopt_job,
    set_plan,
    set_planned,
    set_prepared,
    set_starting,
)
from megatron_operator.lifecycle.ledger_state import update_ledger
from megatron_operator.lifecycle.readiness import set_readiness
from megatron_operator.lifecycle.snapshot import RunSnapshot
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.lifecycle.status_update import update_status
from megatron_operator.manifests import gang_token
from megatron_operator.manifests.metadata import Owner

from bench.scale_cluster import NAMESPACE, PLATFORM, recipe
from testkit.api_server import Object

NAME: Final = "name-of-the-recipe"
UID: Final = "00000000-0000-0000-0000-000000000000"
JOB_UID: Final = "11111111-1111-1111-1111-111111111111"
VERSION: Final = "resource-version"
"""What is replaced in the manifests for each recipe; see `for_recipe`."""


def job_manifest() -> Object:
    """The PyTorchJob that this operator makes of a recipe of the bench, without metadata."""
    job = start_manifests()[-2]
    return {key: job[key] for key in ("apiVersion", "kind", "spec")}


def start_manifests() -> list[Object]:
    """What this operator writes for a recipe until its job is reported: claim, token, job, and the status."""
    config = Config(PlatformConfig.model_validate(PLATFORM), catalog.load())
    body = recipe(NAME)
    now = time.time()
    body["metadata"] |= {
        "uid": UID,
        "generation": 1,
        "resourceVersion": VERSION,
        "creationTimestamp": timestamp(now),
    }
    status = StatusBuilder.of(body, now)
    desired = desired_state(planning_input(status), config)
    job = desired.manifests.job | {"metadata": desired.manifests.job["metadata"] | {"uid": JOB_UID}}
    set_planned(status, desired)
    set_plan(status, desired)
    status.observe_generation()
    record_accepted(status)
    set_prepared(status, desired)
    set_starting(status, Reason.JOB_CREATED, "")
    snapshot = RunSnapshot(now, job, announcing={})
    adopt_job(status, job)
    update_status(status, snapshot)
    update_ledger(status, snapshot)
    set_readiness(status)
    token = gang_token.secret(Owner(NAME, NAMESPACE, UID), "0" * 64)
    return [*desired.manifests.claims, token, desired.manifests.job, status.patch()]


def for_recipe(manifest: str, made: Object, job_uid: str = JOB_UID) -> Object:
    """A manifest, given as JSON, for the recipe that the API server has made."""
    metadata = made["metadata"]
    for what, value in (
        (NAME, metadata["name"]),
        (UID, metadata["uid"]),
        (VERSION, metadata["resourceVersion"]),
        (JOB_UID, job_uid),
    ):
        manifest = manifest.replace(what, value)
    return dict(json.loads(manifest))
