"""Flags that Megatron refuses without another setting are refused with what they need, and taken with it."""

from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.planner import plan

AWARE = {"usePrecisionAwareOptimizer": True}


def errors(resolved: Any) -> list[str]:
    try:
        plan(resolved)
    except InvalidRecipeError as refused:
        return [str(error) for error in refused.errors]
    return []


@pytest.mark.parametrize(
    ("args", "error", "with_need"),
    [
        (
            {"exp-avg-dtype": "bf16"},
            "spec.megatronArgs.exp-avg-dtype: requires the precision-aware optimizer",
            {"training": AWARE},
        ),
        (
            {"cuda-graph-impl": "full_iteration"},
            "spec.megatronArgs.cuda-graph-impl: full_iteration captures no check of the loss",
            {"megatronArgs": {"no-check-for-nan-in-loss-and-grad": True}},
        ),
        (
            {"start-weight-decay": 0.01, "end-weight-decay": 0.1},
            "spec.megatronArgs.start-weight-decay: 0.01 is set without weight-decay-incr-style",
            {"megatronArgs": {"weight-decay-incr-style": "linear"}},
        ),
        (
            {"weight-decay-incr-style": "linear"},
            "spec.megatronArgs.weight-decay-incr-style: linear requires start-weight-decay and end-",
            {"megatronArgs": {"start-weight-decay": 0.01, "end-weight-decay": 0.1}},
        ),
        (
            {"hierarchical-context-parallel-sizes": [2, 2]},
            "[2, 2] are 4 ranks, and parallelism.contextParallelSize is 2",
            {"parallelism": {"contextParallelSize": 4}},
        ),
        (
            {"lr-warmup-init": 1},
            "spec.megatronArgs.lr-warmup-init: 1 is above training.lr 0.0003; set at most 0.0003",
            {"training": {"lr": 2}},
        ),
        (
            {"log-memory-interval": 25},
            "25 is not a multiple of training.logInterval 10",
            {"training": {"logInterval": 5}},
        ),
        (
            {"save-retain-interval": 750},
            "750 is not a multiple of checkpoint.saveInterval 500",
            {"checkpoint": {"saveInterval": 250}},
        ),
        (
            {"fine-grained-activation-offloading": True, "offload-modules": ["core_attn"]},
            'set offload-modules, and env {NVTE_CPU_OFFLOAD_V1: "1"}',
            {"env": {"NVTE_CPU_OFFLOAD_V1": "1"}},
        ),
        (
            {"lr-wsd-decay-iters": 100},
            "spec.megatronArgs.lr-wsd-decay-iters: 100 has no effect without lrDecayStyle WSD",
            {"training": {"lrDecayStyle": "WSD"}},
        ),
    ],
)
def test_a_flag_is_taken_only_with_what_it_needs(
    resolve: Any, args: dict[str, Any], error: str, with_need: dict[str, Any]
) -> None:
    assert any(error in each for each in errors(resolve("llama3-8b", 8, megatronArgs=args)))
    added = with_need | {"megatronArgs": args | with_need.get("megatronArgs", {})}
    assert errors(resolve("llama3-8b", 8, **added)) == []


def test_overlapped_weight_gradients_need_the_overlap_of_experts(resolve: Any) -> None:
    found = errors(resolve("mixtral-8x7b", 64, megatronArgs={"delay-wgrad-compute": True}))
    assert [each.split(":")[0] for each in found] == ["spec.megatronArgs.delay-wgrad-compute"]


def test_the_length_of_the_last_decay_has_the_unit_of_the_run(resolve: Any) -> None:
    in_samples = {"lrDecayStyle": "WSD", "trainSamples": 10_000_000}
    found = errors(resolve("llama3-8b", 8, training=in_samples, megatronArgs={"lr-wsd-decay-iters": 100}))
    assert found == [
        "spec.training.lrDecayStyle: WSD decays at the end of the run, and the length of that decay is not"
        " set; set megatronArgs.lr-wsd-decay-samples, or another style",
        "spec.megatronArgs.lr-wsd-decay-iters: 100 has no effect: the run's length is in samples; set"
        " lr-wsd-decay-samples, or leave it out",
    ]
    assert (
        errors(resolve("llama3-8b", 8, training=in_samples, megatronArgs={"lr-wsd-decay-samples": 9})) == []
    )


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ({"moe-shared-expert-overlap": True}, "true has no effect: the model has no experts"),
        ({"warmup": 2}, "was removed from Megatron; set spec.training.lrWarmupFraction"),
        ({"non-persistent-ckpt-type": "local"}, "local requires the package nvidia-resiliency-ext"),
        ({"yaml-cfg": "/data/x.yaml"}, "replaces all of the settings that the operator writes"),
    ],
)
def test_flags_that_no_other_setting_helps_are_refused(
    resolve: Any, args: dict[str, Any], error: str
) -> None:
    assert any(error in each for each in errors(resolve("llama3-8b", 8, megatronArgs=args)))


def test_a_flag_that_is_off_needs_nothing(resolve: Any) -> None:
    off = {"delay-wgrad-compute": False, "moe-shared-expert-overlap": False, "exp-avg-dtype": "fp32"}
    assert errors(resolve("llama3-8b", 8, megatronArgs=off)) == []
