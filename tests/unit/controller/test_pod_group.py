"""Gangs of Kubernetes' own scheduler: the PodGroup exists before the job, or Running has the reason."""

from collections.abc import Iterator
from typing import Any

import pytest
from megatron_operator.api.labels import LABEL_RECIPE
from megatron_operator.api.platform import PlatformConfig

from tests.unit.controller.api_in_memory import NAME, NAMESPACE, UID
from tests.unit.controller.simulated_run import Run, run_on

PLATFORM = PlatformConfig.model_validate(
    {"accelerators": {"h100-sxm": {}}, "image": "trainer", "gangScheduling": {"scheduler": "kubernetes"}}
)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    with run_on(PLATFORM, monkeypatch) as run:
        yield run


def reconciled(run: Run) -> dict[str, Any]:
    """The condition Running after some reconciles."""
    for _ in range(4):
        run.cluster.pass_time(5)
        run.operator.reconcile()
    return dict(run.condition("Running"))


def count(run: Run) -> int:
    assert run.api.pod_groups is not None
    [group] = run.api.pod_groups.values()
    assert group["metadata"]["ownerReferences"][0]["uid"] == UID
    return int(group["spec"]["schedulingPolicy"]["gang"]["minCount"])


def test_a_run_has_a_pod_group_of_its_size(run: Run) -> None:
    run.until(run.trains)
    assert count(run) == len(run.cluster.pods)


def test_without_the_api_the_condition_names_the_reason_and_no_job_is_created(run: Run) -> None:
    run.api.pod_groups = None
    condition = reconciled(run)
    assert (condition["status"], condition["reason"]) == ("False", "PodGroupMissing")
    assert run.api.job() is None
    assert run.condition("Stalled")["status"] == "True"
    run.api.pod_groups = {}
    run.until(run.trains)


def test_the_pod_group_of_an_earlier_job_of_another_size_is_replaced(run: Run) -> None:
    run.until(run.trains)
    pods = len(run.cluster.pods)
    run.edit_count(8 * pods // 2)
    run.until(lambda: run.trains(pods // 2))
    assert count(run) == pods // 2


def test_a_pod_group_of_somebody_else_is_neither_used_nor_deleted(run: Run) -> None:
    foreign = {
        "metadata": {"name": NAME, "namespace": NAMESPACE, "uid": "x", "labels": {LABEL_RECIPE: "other"}}
    }
    run.api.pod_groups = {NAME: foreign}
    condition = reconciled(run)
    assert condition["reason"] == "NameTaken"
    assert run.api.job() is None
    assert run.api.pod_groups == {NAME: foreign}
