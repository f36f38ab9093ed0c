"""computeDomain of a profile: the ComputeDomain exists before the job, or Running has the reason."""

from collections.abc import Iterator
from typing import Any

import pytest
from megatron_operator.api.labels import LABEL_RECIPE
from megatron_operator.api.platform import PlatformConfig

from tests.unit.controller.api_in_memory import NAME, NAMESPACE, UID
from tests.unit.controller.simulated_run import Run, run_on

PLATFORM = PlatformConfig.model_validate(
    {"accelerators": {"h100-sxm": {"computeDomain": True}}, "image": "trainer"}
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


def test_a_run_has_a_compute_domain_of_its_own(run: Run) -> None:
    run.until(run.trains)
    assert run.api.compute_domains is not None
    [domain] = run.api.compute_domains.values()
    assert domain["metadata"]["ownerReferences"][0]["uid"] == UID


def test_without_the_dra_driver_the_condition_names_the_reason_and_no_job_is_created(run: Run) -> None:
    run.api.compute_domains = None
    condition = reconciled(run)
    assert (condition["status"], condition["reason"]) == ("False", "ComputeDomainMissing")
    assert run.api.job() is None
    assert run.condition("Stalled")["status"] == "True"
    run.api.compute_domains = {}
    run.until(run.trains)


def test_a_compute_domain_of_somebody_else_is_not_used(run: Run) -> None:
    foreign = {
        "metadata": {"name": NAME, "namespace": NAMESPACE, "uid": "x", "labels": {LABEL_RECIPE: "other"}}
    }
    run.api.compute_domains = {NAME: foreign}
    condition = reconciled(run)
    assert condition["reason"] == "NameTaken"
    assert run.api.job() is None
    assert run.api.compute_domains == {NAME: foreign}
