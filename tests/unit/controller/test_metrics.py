"""Series of runs: they say what the status says, and go with the recipe."""

from typing import Any

from megatron_operator.api.conditions import Phase
from megatron_operator.api.status import LostSeconds, Plan, RecoveryStatus, RestartsByKind
from megatron_operator.controller import metrics
from megatron_operator.controller.workqueue import Key
from prometheus_client import REGISTRY

KEY = Key("default", "run")
OF_RUN = {"namespace": "default", "name": "run"}


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, OF_RUN | labels)


def shown(run: Any, phase: Phase) -> None:
    draft = run.draft()
    recovery = RecoveryStatus(
        restarts_by_kind=RestartsByKind(rank=3),
        lost_seconds=LostSeconds(redo=4.5),
        lost_iterations=12,
        goodput=0.97,
        nodes_avoided=["node-1"],
    )
    draft.set(phase=phase, recovery=recovery, plan=Plan.model_construct(world_size=8))
    metrics.show(draft)


def test_a_run_is_shown_in_numbers(run: Any) -> None:
    shown(run, Phase.TRAINING)
    assert value("megatron_recipe_restarts", kind="rank") == 3
    assert value("megatron_recipe_restarts", kind="hang") == 0
    assert value("megatron_recipe_lost_seconds", phase="redo") == 4.5
    assert value("megatron_recipe_lost_iterations") == 12
    assert value("megatron_recipe_goodput") == 0.97
    assert value("megatron_recipe_nodes_avoided") == 1
    assert value("megatron_recipe_accelerators") == 8


def test_a_run_that_is_over_holds_no_accelerator(run: Any) -> None:
    shown(run, Phase.FAILED)
    assert value("megatron_recipe_accelerators") == 0


def test_the_series_go_with_the_recipe(run: Any) -> None:
    shown(run, Phase.TRAINING)
    metrics.forget(KEY)
    left = [
        sample
        for metric in REGISTRY.collect()
        for sample in metric.samples
        if sample.labels.get("name") == "run"
    ]
    assert left == []
    metrics.forget(KEY)


def test_a_recipe_that_was_never_laid_out_has_none(run: Any) -> None:
    metrics.forget(KEY)
    metrics.show(run.draft())
    assert value("megatron_recipe_accelerators") is None
