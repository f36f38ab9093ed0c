"""A refused edit is retried when what refused it has changed; a generation is observed once it is handled."""

from typing import Any

import pytest
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.controller.handlers import Operator
from megatron_operator.controller.settings import Settings
from megatron_operator.lifecycle.actions import SOON
from megatron_operator.lifecycle.desired import Config
from megatron_operator.lifecycle.status_builder import RecipeKey

from tests.unit.controller import whole_operator
from tests.unit.controller.simulated_cluster import TOTAL
from tests.unit.controller.simulated_run import CLAIM, Run
from tests.unit.controller.whole_operator import KEY

OTHER = "h200-sxm"
BOTH = PlatformConfig.model_validate({"accelerators": {"h100-sxm": {}, OTHER: {}}, "image": "trainer"})


@pytest.fixture
def run(training_run: Run) -> Run:
    return training_run


def refuse(run: Run) -> None:
    """An edit names an accelerator that the platform does not have."""
    checkpoint = run.api.recipe["spec"]["checkpoint"] | {"saveInterval": 77}
    run.edit(accelerator={"type": OTHER, "count": 16}, checkpoint=checkpoint)
    run.until(lambda: run.condition("Planned")["reason"] == "Refused")


def add_accelerator(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster's owner adds it to the platform."""
    monkeypatch.setattr(whole_operator, "CONFIG", Config(BOTH, whole_operator.CONFIG.catalog))
    run.operator._reconciler._planner._config.revision += 1


def test_a_run_whose_edit_is_refused_is_stalled_and_not_ready(run: Run) -> None:
    assert run.condition("Ready")["status"] == "True"
    assert run.condition("Stalled") == {}
    refuse(run)
    run.until(run.trains)
    assert (run.condition("Ready")["status"], run.condition("Stalled")["status"]) == ("False", "True")
    assert run.condition("Stalled")["reason"] == "Refused"
    assert run.status["observedGeneration"] == 2


def test_a_refused_edit_of_a_running_recipe_is_applied_once_the_platform_allows_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run.cluster.job
    refuse(run)
    run.until(run.trains)
    add_accelerator(run, monkeypatch)
    run.until(lambda: run.cluster.job not in (None, before) and run.trains())
    assert run.condition("Planned")["status"] == "True"
    assert run.status["observedGeneration"] == 2


def succeed(run: Run) -> None:
    """Train to the end; the job expires at once."""
    run.edit(ttlSecondsAfterFinished=0)
    run.cluster.iteration = TOTAL - 5
    run.until(lambda: run.status["phase"] == "Succeeded" and run.cluster.job is None)


def reconcile(run: Run) -> None:
    for _ in range(20):
        run.cluster.pass_time(1)
        run.operator.reconcile()


def test_a_finished_run_without_its_job_is_not_trained_again_after_a_refused_edit_is_set_back(
    run: Run,
) -> None:
    succeed(run)
    before = run.api.recipe["spec"]
    refuse(run)
    assert run.status["phase"] == "Succeeded"
    run.edit(accelerator=before["accelerator"], checkpoint=before["checkpoint"])
    reconcile(run)
    assert run.condition("Planned")["status"] == "True"
    assert run.status["phase"] == "Succeeded"
    assert run.cluster.job is None


def test_a_finished_run_that_an_earlier_release_made_refused_is_not_trained_again(run: Run) -> None:
    succeed(run)
    before = run.api.recipe["spec"]
    refuse(run)
    run.status["phase"] = "Refused"
    run.edit(accelerator=before["accelerator"], checkpoint=before["checkpoint"])
    reconcile(run)
    assert run.status["phase"] == "Succeeded"
    assert run.cluster.job is None


def test_a_refused_edit_of_a_finished_run_without_its_job_waits_for_another_edit(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    succeed(run)
    refuse(run)
    add_accelerator(run, monkeypatch)
    reconcile(run)
    assert (run.status["phase"], run.condition("Planned")["status"]) == ("Succeeded", "False")
    assert run.cluster.job is None


def test_a_refused_edit_is_retried_by_another_operator(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = run.cluster.job
    refuse(run)
    monkeypatch.setattr(whole_operator, "CONFIG", Config(BOTH, whole_operator.CONFIG.catalog))
    run.operator._start()
    run.until(lambda: run.cluster.job not in (None, before) and run.trains())


def test_a_refused_edit_is_planned_once_while_nothing_changes(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(run)
    planned: list[object] = []
    monkeypatch.setattr(whole_operator, "desired_state", lambda *given: planned.append(given))
    for _ in range(20):
        run.cluster.pass_time(1)
        run.operator.reconcile()
    assert not planned


def test_a_recipe_is_planned_again_where_what_refuses_it_changes_before_that_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that are refused are listed after the change, and it is not among them yet."""
    run = Run()
    run.edit(accelerator={"type": OTHER, "count": 16})
    apply = run.api.apply

    async def apply_late(*given: Any) -> Any:
        add_accelerator(run, monkeypatch)
        return await apply(*given)

    def reconcile() -> float | None:
        return run.operator.runner.run(run.operator._reconciler(KEY))

    assert reconcile() is None
    run.edit(accelerator={"type": OTHER, "count": 32})
    monkeypatch.setattr(run.api, "apply", apply_late)
    assert reconcile() == SOON
    assert run.status["phase"] == "Refused"
    reconcile()
    assert run.condition("Planned")["status"] == "True"
    run.operator.close()


@pytest.mark.parametrize("writes", range(4))
def test_an_accepted_retry_is_one_resize_wherever_the_operator_dies(
    run: Run, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    run.edit(accelerator={"type": OTHER, "count": 8})
    run.until(lambda: run.condition("Planned")["reason"] == "Refused")
    add_accelerator(run, monkeypatch)
    run.operator.die_after(writes)
    run.until(lambda: run.trains(pods=1))
    assert [each["kind"] for each in run.incidents] == ["resize"]


def test_an_accepted_retry_that_waits_for_a_claim_is_not_forgotten(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run.cluster.job
    refuse(run)
    claim = run.api.claims.pop(CLAIM)
    add_accelerator(run, monkeypatch)
    run.until(lambda: run.condition("Prepared")["reason"] == "VolumeClaimMissing")
    assert run.cluster.job is before
    run.api.claims[CLAIM] = claim
    run.until(lambda: run.cluster.job not in (None, before) and run.trains())


def test_the_plan_is_that_of_the_job_that_trains_until_an_edited_count_can_be_applied(run: Run) -> None:
    claim = run.api.claims.pop(CLAIM)
    run.edit_count(8)
    run.until(lambda: run.condition("Prepared")["reason"] == "VolumeClaimMissing")
    reconcile(run)
    assert run.status["plan"]["worldSize"] == 16
    assert run.status["ledger"]["marks"][-1]["accelerators"] == 16
    run.api.claims[CLAIM] = claim
    run.until(lambda: run.trains(pods=1))
    assert run.status["plan"]["worldSize"] == 8
    assert run.status["ledger"]["marks"][-1]["accelerators"] == 8
    assert [each["kind"] for each in run.incidents] == ["resize"]


@pytest.mark.parametrize("code", [65, 137])
def test_an_edit_of_a_failed_run_that_waits_for_a_claim_is_not_forgotten(run: Run, code: int) -> None:
    run.cluster.poisoned = True
    if code == 137:
        run.edit(recovery={"maxRestarts": 0})
        run.cluster.fail(run.cluster.pods[1], code, "died")
    else:
        run.cluster.fail(run.cluster.pods[1], code, "bad data")
        run.edit(recovery={"maxRestarts": 0})
    run.until(lambda: run.status["phase"] == "Failed")
    claim = run.api.claims.pop(CLAIM)
    run.cluster.poisoned = False
    run.edit(recovery={"maxRestarts": 5})
    run.until(lambda: run.condition("Running")["reason"] == "VolumeClaimMissing")
    assert run.condition("Failed") == {}, "the run is about to start again"
    run.api.claims[CLAIM] = claim
    run.until(run.trains)
    assert run.status["recovery"].get("restartsSinceCheckpoint", 0) == 0


@pytest.mark.parametrize(
    ("status", "added"),
    [
        ({"phase": "Refused"}, True),
        ({"phase": "Pending"}, True),
        ({"phase": "Training"}, False),
        ({"phase": "Training", "conditions": [{"type": "Planned", "status": "True"}]}, False),
        ({"phase": "Training", "conditions": [{"type": "Planned", "status": "False"}]}, True),
        ({}, False),
    ],
)
async def test_a_changed_platform_reconciles_every_recipe_that_it_may_help(
    status: dict[str, Any], added: bool
) -> None:
    body = {"metadata": {"namespace": "default", "name": "run"}, "status": status}
    keys: list[RecipeKey] = []

    class Api:
        async def find(self, *_: object) -> list[Any]:
            return [body]

    class Queue:
        def add(self, key: RecipeKey) -> None:
            keys.append(key)

    api: Any = Api()
    operator: Any = Operator(Settings(), api, config=None)  # type: ignore[arg-type]
    operator.queue = Queue()
    await operator._add_waiting()
    assert bool(keys) is added


@pytest.mark.parametrize("suspend", [False, True])
def test_a_recipe_with_a_name_that_no_label_can_have_is_refused_though_the_operator_restarts(
    suspend: bool,
) -> None:
    run = Run()
    run.edit(suspend=suspend)
    name = "a" * 64
    run.api.recipe["metadata"]["name"] = name
    for _ in range(2):
        run.operator._start()
        run.operator.runner.run(run.operator._reconciler(RecipeKey(KEY.namespace, name)))
        assert run.condition("Planned")["reason"] == "Refused"
        assert run.status["observedGeneration"] == run.api.recipe["metadata"]["generation"]
    run.operator.close()
