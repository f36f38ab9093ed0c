"""Values that Megatron runs with and that are probably slips are warned of, where the recipe sets them."""

from typing import Any

import pytest
from megatron_operator.planner import plan
from megatron_operator.planner.checks.lint import lint_warnings
from megatron_operator.planner.checks.probable_mistakes import probable_mistakes

from tests.unit.planner.conftest import Resolve
from tests.unit.planner.test_bridge_run import planned


def mistakes(resolve: Resolve, recipe: str = "llama3-8b", **spec: Any) -> list[str]:
    resolved = resolve(recipe, 8, **spec)
    made = plan(resolved)
    found = probable_mistakes(resolved, made)
    assert set(found) <= set(lint_warnings(resolved, made))
    return found


def hub_tokenizer(name: str = "org/name") -> dict[str, Any]:
    tokenizer = {"tokenizerType": "HuggingFaceTokenizer", "tokenizerModel": name}
    volume = {"claimName": "corpus"}
    return {"mockData": None, "volume": volume, "blend": [{"path": "web"}], "tokenizer": tokenizer}


@pytest.mark.parametrize(
    ("spec", "warning"),
    [
        ({"training": {"lr": 0.1}}, "training.lr 0.1: training is expected to diverge"),
        (
            {"training": {"trainIters": 100_000, "lrWarmupIters": 99_999}},
            "training.lrWarmupIters 99,999 is 100% of the run's 100,000 iterations",
        ),
        (
            {"training": {"trainTokens": "20B", "stepBatchSizeSchedule": "0:64 20B:128"}},
            "the batch 128 begins at sample 2,441,406, and the run ends after 2,441,406",
        ),
        (
            {
                "training": {
                    "trainTokens": "20B",
                    "stepBatchSizeSchedule": "0:64 5B:128",
                    "evalInterval": 30_000,
                }
            },
            "training.evalInterval 30,000 is above the run's 23,842 iterations",
        ),
        (
            {"training": {"trainIters": 100, "lrWarmupIters": 10, "evalInterval": 200}},
            "training.evalInterval 200 is above the run's 100 iterations",
        ),
        (
            {"checkpoint": {"saveInterval": 100_000_000}},
            "fewer than checkpoint.saveInterval 100,000,000: a failure makes it start from the beginning",
        ),
        (
            {"checkpoint": {"saveInterval": 1, "keep": 2}, "training": {"globalBatchSize": 8}},
            "checkpoint.saveInterval 1 saves 104.7 GiB every",
        ),
        (
            {
                "recovery": {"rendezvousTimeout": "1s"},
                "per_node": 4,
            },
            "recovery.rendezvousTimeout 1: pods that do not meet",
        ),
        (
            {"recipe": "gpt3-1.3b", "parallelism": {"cpCommType": "a2a"}},
            "cpCommType a2a is not used: CP is 1",
        ),
        (
            {
                "data": {
                    "mockData": None,
                    "volume": {"claimName": "corpus"},
                    "blend": [{"path": "web"}, {"path": "code"}, {"path": "web"}],
                }
            },
            "data.blend names web 2 times",
        ),
        ({"data": hub_tokenizer()}, "'org/name' is a name on the model hub, which trainers do not ask"),
    ],
)
def test_a_probable_slip_is_warned_of(resolve: Resolve, spec: dict[str, Any], warning: str) -> None:
    [found] = mistakes(resolve, **spec)
    assert warning in found


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"training": {"lr": 2e-3, "trainIters": 100, "lrWarmupIters": 50, "evalInterval": 100}},
        {"training": {"evalInterval": 100_000_000, "evalIters": 0}},
        {"checkpoint": {"saveInterval": 500}, "training": {"trainIters": 20, "lrWarmupIters": 2}},
        {"checkpoint": {"saveInterval": 100}, "recovery": {"rendezvousTimeout": 60}},
        {"recovery": {"rendezvousTimeout": 1}},
        {"data": hub_tokenizer(), "env": {"HF_HUB_OFFLINE": "0"}},
        {"data": hub_tokenizer("/data/tokenizer")},
    ],
)
def test_usual_values_are_not_warned_of(resolve: Resolve, spec: dict[str, Any]) -> None:
    assert mistakes(resolve, **spec) == []


@pytest.mark.parametrize(
    ("spec", "warning"),
    [
        ({"peft": {"dim": 4096}}, "peft.dim 4,096: adapters of half the hidden size 4,096 or more"),
        ({"training": {"lr": 0.01}}, "training.lr 0.01: training is expected to diverge"),
    ],
)
def test_settings_of_adapters_are_warned_of_at_admission(spec: dict[str, Any], warning: str) -> None:
    found = planned("llama3.1-8b-lora", **spec).warnings
    assert any(each.startswith(warning) for each in found)
    assert not any(each.startswith(warning) for each in planned("llama3.1-8b-lora").warnings)
