"""A Job without accelerators whose pod finds no node: the status has why, and the platform can change it."""

from collections.abc import Iterator
from typing import Any

import pytest
from megatron_operator.api.platform import CpuJobs
from megatron_operator.controller.node_watch import NodeWatch
from megatron_operator.lifecycle.desired import Config
from megatron_operator.lifecycle.node_state import Taint

from tests.unit.controller import whole_operator
from tests.unit.controller.converting import IMPORT, RESULT, converting_run, end, reconcile
from tests.unit.controller.simulated_run import Run

TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
MESSAGE = "0/3 nodes are available: 3 node(s) had untolerated taint(s). no new claims to deallocate"


@pytest.fixture
def run() -> Iterator[Run]:
    with converting_run() as run:
        yield run


def pod(node: str | None = None) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": MESSAGE}
    if node is not None:
        condition = {"type": "PodScheduled", "status": "True"}
    spec = {} if node is None else {"nodeName": node}
    return {"metadata": {"name": f"{IMPORT}-x"}, "spec": spec, "status": {"conditions": [condition]}}


def set_platform(monkeypatch: pytest.MonkeyPatch, jobs: CpuJobs | None) -> None:
    config = whole_operator.CONFIG
    platform = config.platform.model_copy(update={"cpu_jobs": jobs})
    monkeypatch.setattr(whole_operator, "CONFIG", Config(platform, config.catalog))


def tolerations(run: Run) -> Any:
    return run.api.batch_jobs[IMPORT]["spec"]["template"]["spec"].get("tolerations")


def test_a_pod_that_no_node_takes_has_its_job_created_again_once_the_platform_tolerates_the_taint(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    taints = frozenset({Taint("nvidia.com/gpu", "present", "NoSchedule")})
    monkeypatch.setattr(NodeWatch, "taints", lambda _: taints)
    reconcile(run)
    run.api.batch_pods = [pod()]
    reconcile(run)
    imported = run.condition("Imported")
    assert (run.status["phase"], imported["reason"]) == ("Importing", "Unschedulable")
    assert imported["message"] == (
        f"1 pod has no node; x: {MESSAGE}; nodes with taints nvidia.com/gpu:NoSchedule take it once "
        "platform.cpuJobs.tolerations has these"
    )
    assert tolerations(run) is None
    set_platform(monkeypatch, CpuJobs.model_validate({"tolerations": [TOLERATION]}))
    run.api.batch_pods = [pod()]
    run.until(lambda: IMPORT in run.api.batch_jobs and tolerations(run) == [TOLERATION])
    uid = run.api.batch_jobs[IMPORT]["metadata"]["uid"]
    reconcile(run, 6)
    assert run.api.batch_jobs[IMPORT]["metadata"]["uid"] == uid, "it is created again once"
    end(run, IMPORT, message=RESULT)
    run.until(run.trains)


def test_a_pod_that_has_a_node_goes_on_there_and_nothing_is_repeated_after_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    reconcile(run)
    run.api.batch_pods = [pod("node-1")]
    uid = run.api.batch_jobs[IMPORT]["metadata"]["uid"]
    set_platform(monkeypatch, CpuJobs.model_validate({"tolerations": [TOLERATION]}))
    reconcile(run, 6)
    assert run.api.batch_jobs[IMPORT]["metadata"]["uid"] == uid
    end(run, IMPORT, message=RESULT)
    run.until(run.trains)
    job = run.api.job()
    set_platform(monkeypatch, None)
    reconcile(run, 6)
    assert run.api.batch_jobs[IMPORT]["metadata"]["uid"] == uid
    assert run.api.job() == job
