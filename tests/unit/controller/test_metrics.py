"""The metrics of a run follow its status, and are removed with the recipe."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from megatron_operator.api.conditions import Phase
from megatron_operator.api.pod_warnings import PodWarning
from megatron_operator.api.recovery_status import LostSeconds, RecoveryStatus, RestartsByKind
from megatron_operator.api.status import Expected, Plan, RunWarning, Straggler
from megatron_operator.api.times import seconds, timestamp
from megatron_operator.controller import run_metrics
from megatron_operator.controller.cache_check import CacheCheck
from megatron_operator.controller.object_cache import Caches
from megatron_operator.controller.run_metrics import RUNS
from megatron_operator.lifecycle.status_builder import RecipeKey
from megatron_operator.lifecycle.time_ledger import State, advance, open_ledger
from prometheus_client import REGISTRY

KEY = RecipeKey("default", "run")
RUN_LABELS = {"namespace": "default", "name": "run"}


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, RUN_LABELS | labels)


def exported() -> dict[tuple[str, str | None], float]:
    """The values of the run by metric and phase."""
    return {
        (sample.name, sample.labels.get("phase")): sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
        if sample.labels.get("name") == "run"
    }


def update(run: Any, phase: Phase) -> None:
    status = run.status()
    recovery = RecoveryStatus(
        restarts_by_kind=RestartsByKind(rank=3),
        lost_seconds=LostSeconds(redo=4.5),
        lost_iterations=12,
        goodput=0.97,
        nodes_avoided=["node-1"],
    )
    status.set(phase=phase, recovery=recovery, plan=Plan.model_construct(world_size=8))
    slow = Straggler(rank=9, iteration=4, slowdown=2.0, own_seconds=1.0, peer_seconds=0.5, since="")
    status.set(stragglers=[slow, slow.model_copy(update={"until": timestamp(run.now)})])
    ledger = open_ledger(timestamp(run.now - 100), State("prepare"))
    ended = status.ended
    last = State("idle", phase) if ended else State("train", accelerators=8)
    status.set(ledger=advance(ledger, last, run.now - 30, recovery.history, ended=ended))
    RUNS.update(status)


def test_the_metrics_follow_the_status(run: Any) -> None:
    update(run, Phase.TRAINING)
    assert value("megatron_recipe_restarts", kind="rank") == 3
    assert value("megatron_recipe_restarts", kind="hang") == 0
    assert value("megatron_recipe_lost_seconds", phase="redo") == 4.5
    assert value("megatron_recipe_lost_iterations") == 12
    assert value("megatron_recipe_goodput") == 0.97
    assert value("megatron_recipe_nodes_avoided") == 1
    assert value("megatron_recipe_stragglers") == 1
    assert value("megatron_recipe_accelerators") == 8


def test_the_time_since_the_creation_is_divided(run: Any) -> None:
    update(run, Phase.TRAINING)
    assert value("megatron_recipe_time_seconds", category="prepare") == 70
    assert value("megatron_recipe_time_seconds", category="train") == 30
    assert value("megatron_recipe_time_seconds", category="hang") == 0
    assert value("megatron_recipe_accelerator_time_seconds", category="train") == 240
    update(run, Phase.FAILED)
    assert value("megatron_recipe_time_seconds", category="idle") == 0, "a run that is over spends no time"


def test_the_time_of_the_current_week_and_its_price_are_exported(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run was created in the week before and trains since Sunday evening; now it is Monday."""
    monkeypatch.setattr(run_metrics, "time", SimpleNamespace(time=lambda: run.now))
    run.now = seconds("2026-11-23T01:00:00Z") or 0.0
    status = run.status()
    plan = Plan.model_construct(world_size=8, price_per_gpu_hour=2.5)
    start, train = State("start", accelerators=8), State("train", accelerators=8)
    ledger = open_ledger("2026-11-22T20:00:00Z", start)
    ledger = advance(ledger, train, run.now - 2 * 3600, [], ended=False)
    ledger = advance(ledger, start, run.now - 600, [], ended=False)
    status.set(phase=Phase.TRAINING, plan=plan, ledger=ledger)
    RUNS.update(status)
    assert value("megatron_recipe_week_accelerator_seconds", use="useful") == 8 * 3000
    assert value("megatron_recipe_week_accelerator_seconds", use="lost") == 8 * 600
    assert value("megatron_recipe_price_per_gpu_hour") == 2.5


@pytest.mark.parametrize("phase", [Phase.SUCCEEDED, Phase.SUSPENDED])
def test_the_time_of_the_week_is_0_in_the_next_one_without_an_update(
    run: Any, monkeypatch: pytest.MonkeyPatch, phase: Phase
) -> None:
    """A run that is over or suspended is not updated any more."""
    monkeypatch.setattr(run_metrics, "time", SimpleNamespace(time=lambda: run.now))
    run.now = seconds("2026-11-22T23:59:59Z") or 0.0
    status = run.status()
    ledger = open_ledger("2026-11-22T20:00:00Z", State("start", accelerators=8))
    ledger = advance(ledger, State("train", accelerators=8), run.now - 600, [], ended=False)
    ledger = advance(ledger, State("idle", phase), run.now, [], ended=phase == Phase.SUCCEEDED)
    status.set(phase=phase, plan=Plan.model_construct(world_size=8), ledger=ledger)
    RUNS.update(status)
    assert value("megatron_recipe_week_accelerator_seconds", use="useful") == 8 * 600
    assert value("megatron_recipe_week_accelerator_seconds", use="lost") == 8 * (4 * 3600 - 601)
    run.now += 1
    assert value("megatron_recipe_week_accelerator_seconds", use="useful") == 0
    assert value("megatron_recipe_week_accelerator_seconds", use="lost") == 0


def test_the_plan_is_exported_as_far_as_it_has_estimates(run: Any) -> None:
    status = run.status()
    speed = {"step_seconds": 2.0, "tokens_per_second_per_gpu": 1e4, "tflops_per_gpu": 400.0, "bubble": 0.0}
    for mfu, peak in ((0.4, 1000.0), (0.0, None)):
        status.set(plan=Plan.model_construct(world_size=8, expected=Expected(**speed, mfu=mfu)))
        RUNS.update(status)
        assert value("megatron_recipe_planned_step_seconds") == 2.0
        assert value("megatron_recipe_peak_tflops_per_gpu") == peak
    status.set(plan=Plan.model_construct(world_size=8))
    RUNS.update(status)
    assert value("megatron_recipe_planned_step_seconds") is None


def test_a_failed_run_holds_no_accelerators(run: Any) -> None:
    update(run, Phase.FAILED)
    assert value("megatron_recipe_accelerators") == 0


def test_one_series_has_the_phase(run: Any) -> None:
    update(run, Phase.TRAINING)
    update(run, Phase.RECOVERING)
    assert value("megatron_recipe_phase", phase=Phase.RECOVERING) == 1
    assert value("megatron_recipe_phase", phase=Phase.TRAINING) is None


def test_the_metrics_are_removed_with_the_recipe(run: Any) -> None:
    update(run, Phase.TRAINING)
    RUNS.remove(KEY)
    assert exported() == {}
    RUNS.remove(KEY)


def test_a_recipe_without_a_plan_has_only_a_phase(run: Any) -> None:
    """One that is refused as it is created, and one whose edit is refused."""
    RUNS.remove(KEY)
    for _ in range(2):
        status = run.status()
        status.set(phase=Phase.REFUSED)
        RUNS.update(status)
        assert exported() == {("megatron_recipe_phase", Phase.REFUSED): 1}
        update(run, Phase.TRAINING)
        assert value("megatron_recipe_accelerators") == 8


def test_warnings_of_pods_are_exported_by_reason_until_they_end(run: Any) -> None:
    low, unwritable = PodWarning.CHECKPOINT_VOLUME_LOW, PodWarning.CHECKPOINT_VOLUME_NOT_WRITABLE
    status = run.status()
    plan = Plan.model_construct(world_size=8)
    status.set(phase=Phase.TRAINING, plan=plan, warnings=[RunWarning(reason=low, message="1 GiB free")])
    RUNS.update(status)
    assert value("megatron_recipe_warnings", reason=low) == 1
    assert value("megatron_recipe_warnings", reason=unwritable) is None
    status.set(warnings=[])
    RUNS.update(status)
    assert value("megatron_recipe_warnings", reason=low) is None


def test_counters_of_rare_events_have_a_series_before_the_first_one() -> None:
    caches = Caches()
    CacheCheck(cast(Any, None), caches, (), lambda _key: None)
    names = {cache.resource.plural for cache in caches.all}
    assert "pods" in names
    for plural in names:
        assert (
            REGISTRY.get_sample_value("megatron_operator_stale_objects_total", {"plural": plural}) is not None
        )
    for outcome in ("done", "error"):
        labels = {"outcome": outcome}
        assert REGISTRY.get_sample_value("megatron_operator_reconciles_total", labels) is not None
