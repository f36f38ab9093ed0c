"""A recipe that keeps or exports its best checkpoint must evaluate one that it saves before the last."""

from collections.abc import Callable
from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError

Refusal = Callable[..., dict[str, str]]
KEEP, WHEN = "spec.checkpoint.keepBest", "spec.export.when"


def asked(save: int, every: int, **training: Any) -> dict[str, Any]:
    length = {"trainIters": 500, "evalInterval": every} | training
    return {
        "recipe": "small-1",
        "training": length,
        "checkpoint": {"saveInterval": save, "keep": 2, "keepBest": True},
    }


@pytest.mark.parametrize(("save", "every"), [(100, 100), (100, 50), (50, 100), (100, 40), (499, 1)])
def test_checkpoints_that_are_evaluated_before_the_last_one_are_accepted(
    resolve: Callable[..., Any], save: int, every: int
) -> None:
    assert resolve(**asked(save, every)).checkpoint.keep_best


def test_a_run_with_a_batch_ramp_must_evaluate_a_checkpoint_too(refusal: Refusal) -> None:
    """500 iterations of 32."""
    ramp = {"trainSamples": 16000, "trainIters": None, "stepBatchSizeSchedule": "0:32 10M:64"}
    found = refusal(**asked(100, 600, **ramp))
    assert "would always choose the last iteration, 500" in found[KEEP]


@pytest.mark.parametrize(
    ("save", "every", "fix"),
    [
        (100, 70, "set training.evalInterval to 100, or to a divisor of it"),
        (100, 500, "set training.evalInterval to 100, or to a divisor of it"),
        (500, 100, "set checkpoint.saveInterval to 100, or to a multiple of it below 500"),
        (500, 1000, "set both checkpoint.saveInterval and training.evalInterval, for example to 50"),
    ],
)
def test_a_run_whose_checkpoints_are_never_evaluated_before_the_last_is_refused_with_numbers(
    refusal: Refusal, save: int, every: int, fix: str
) -> None:
    (found,) = refusal(**asked(save, every)).values()
    assert found.startswith(f"{KEEP}: would always choose the last iteration, 500: checkpoints are saved")
    assert f"every {save:,} iterations (saveInterval) and evaluated every {every:,} (evalInterval)" in found
    assert found.endswith(fix)


def test_each_checkpoint_is_evaluated_where_the_recipe_sets_no_interval(resolve: Callable[..., Any]) -> None:
    spec = asked(100, 1000)
    del spec["training"]["evalInterval"]
    found = resolve(**spec)
    assert (found.training.eval_interval, found.origins["training.evalInterval"]) == (
        100,
        "checkpoint.saveInterval",
    )
    assert any(note.startswith("evalInterval 1,000 becomes 100, ") for note in found.notes)
    found = resolve(**spec | {"training": {"trainIters": 5000}})
    assert (found.training.eval_interval, found.origins["training.evalInterval"]) == (1000, "default")
    found = resolve(**spec | {"checkpoint": {"saveInterval": 100, "keep": 2}})
    assert found.training.eval_interval == 1000


def test_a_run_that_saves_nothing_before_its_end_is_refused_without_an_interval_too(refusal: Refusal) -> None:
    spec = asked(500, 1000)
    del spec["training"]["evalInterval"]
    assert refusal(**spec)[KEEP].endswith("for example to 50")


def test_a_run_counted_in_samples_is_checked_too(refusal: Refusal) -> None:
    samples = {"trainSamples": 500 * 8, "globalBatchSize": 8, "trainIters": None}
    spec = asked(100, 70)
    spec["training"] = {name: value for name, value in (spec["training"] | samples).items() if value}
    assert list(refusal(**spec)) == [KEEP]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"training": {"trainIters": 500, "evalIters": 0}}, "training.evalIters is 0"),
        ({"data": {"mockData": False, "split": "100,0,0"}}, "data.split 100,0,0 has none"),
    ],
)
def test_a_run_without_evaluations_is_refused(refusal: Refusal, more: dict[str, Any], message: str) -> None:
    found = refusal(**asked(100, 100) | more)
    assert message in found[KEEP]


@pytest.mark.parametrize(
    ("when", "keep_best", "errors"),
    [
        (["best"], None, []),
        (["best", "end"], True, []),
        (["end"], False, []),
        (["end", "end"], None, [WHEN]),
        (["best", "best"], None, [WHEN]),
        (["best", "end"], False, [KEEP]),
    ],
)
def test_an_export_of_the_best_implies_that_it_is_kept(
    resolve: Callable[..., Any], when: list[str], keep_best: bool | None, errors: list[str]
) -> None:
    spec = asked(100, 100)
    spec["checkpoint"] |= {"keepBest": keep_best}
    spec["checkpoint"] = {name: value for name, value in spec["checkpoint"].items() if value is not None}
    spec["export"] = {"huggingFace": {"path": "/checkpoints/out"}, "when": when}
    try:
        found = resolve(**spec)
    except InvalidRecipeError as refused:
        fields = [error.field for error in refused.errors if error.field in (WHEN, KEEP)]
        assert fields == errors
    else:
        assert errors == []
        assert found.checkpoint.keep_best == ("best" in when or keep_best)
