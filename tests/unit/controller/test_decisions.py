"""What the operator decides is counted once, by kind; a run that goes on adds nothing."""

import asyncio
from typing import Any

import pytest
from megatron_operator.controller.action_runner import execute
from megatron_operator.controller.api_client import ApiError
from megatron_operator.lifecycle.actions import DeletePods, ForceDeletePods, PinImage, ReplacePods
from prometheus_client import REGISTRY

from bench.scale_manifests import job_manifest
from tests.unit.controller.simulated_cluster import TOTAL
from tests.unit.controller.simulated_run import Run

NAME = "megatron_operator_decisions_total"
POD: dict[str, Any] = {
    "metadata": {
        "name": "run-worker-0",
        "namespace": "default",
        "uid": "p",
        "labels": {"training.kubeflow.org/job-name": "run"},
        "ownerReferences": [{"kind": "PyTorchJob", "name": "run", "uid": "j"}],
    }
}


def counted() -> dict[str, float]:
    """Decisions of this process so far, by kind."""
    return {
        sample.labels["decision"]: sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
        if sample.name == NAME
    }


class Since:
    """The decisions from now on."""

    def __init__(self) -> None:
        self._before = counted()

    def found(self) -> dict[str, float]:
        more = {kind: value - self._before.get(kind, 0.0) for kind, value in counted().items()}
        return {kind: value for kind, value in more.items() if value}


def test_a_run_that_trains_undisturbed_causes_no_decision(training_run: Run) -> None:
    since = Since()
    for _ in range(30):
        training_run.cluster.pass_time(1)
        training_run.operator.reconcile()
    assert since.found() == {}


def test_a_suspension_and_its_end_are_a_decision_each(training_run: Run) -> None:
    run, since = training_run, Since()
    run.edit(suspend=True)
    run.until(lambda: run.status["phase"] == "Suspended" and not run.cluster.pods)
    assert since.found() == {"suspend": 1}
    run.edit(suspend=False)
    run.until(run.trains)
    assert since.found() == {"suspend": 1, "create_job": 1}


def test_an_edit_of_what_pods_see_replaces_the_job_once(training_run: Run) -> None:
    run, since, job = training_run, Since(), training_run.cluster.job
    run.edit(env={"DEBUG": "1"})
    run.until(lambda: run.cluster.job not in (None, job) and run.trains())
    assert since.found() == {"replace_job": 1, "create_job": 1}


def test_the_restart_of_a_gang_that_hangs_is_one_decision_whatever_it_takes(training_run: Run) -> None:
    run, since = training_run, Since()
    run.cluster.hanging = True
    run.until(lambda: bool(run.incidents) and run.trains(), seconds=3600)
    assert since.found() == {"restart_gang": 1}


def test_the_deletion_of_an_expired_job_is_a_decision(training_run: Run) -> None:
    run, since = training_run, Since()
    run.edit(ttlSecondsAfterFinished=0)
    run.cluster.iteration = TOTAL - 5
    run.until(lambda: run.status["phase"] == "Succeeded" and run.cluster.job is None)
    assert since.found() == {"delete_job": 1}


@pytest.mark.parametrize(("status", "expected"), [(None, {"pin_image": 1}), (409, {}), (404, {})])
def test_a_patch_of_a_job_that_has_changed_meanwhile_is_not_counted(
    status: int | None, expected: dict[str, float]
) -> None:
    class Api:
        async def merge(self, *_: object) -> None:
            if status is not None:
                raise ApiError(status, "Conflict", "")

    api: Any = Api()
    since = Since()
    asyncio.run(execute(api, [PinImage(job_manifest(), "image@sha256:0")]))
    assert since.found() == expected


def test_actions_that_change_nothing_are_not_counted_and_those_of_a_decision_not_again() -> None:
    class Api:
        async def delete(self, *_: object, **__: object) -> None:
            pass

    api: Any = Api()
    since = Since()
    asyncio.run(execute(api, [ForceDeletePods(()), ReplacePods((POD,))]))
    assert since.found() == {}
    asyncio.run(execute(api, [DeletePods((POD,))], "restart_gang"))
    assert since.found() == {"restart_gang": 1}
    asyncio.run(execute(api, [DeletePods((POD,))]))
    assert since.found() == {"restart_gang": 1, "delete_pods": 1}
