"""Validation rules of `spec.training`: length, batch size, precision, learning rate."""

from typing import Final

from megatron_operator.api.cel import at_most_one, field, is_false, is_set, is_true
from megatron_operator.api.rule import Rule, exclusive, rule

TRAINING: Final[tuple[Rule, ...]] = (
    rule(
        "spec.training",
        "",
        at_most_one("trainIters", "trainSamples", "trainTokens"),
        "the length of the run is set more than once",
        "keep one of trainTokens, trainIters and trainSamples",
    ),
    exclusive("spec.training", "globalBatchSize", "stepBatchSizeSchedule", "set one of the two"),
    rule(
        "spec.training",
        "fp16",
        ~(is_true("bf16") & is_true("fp16")),
        "is set together with bf16",
        "set one of the two",
    ),
    rule(
        "spec.training",
        "fp8Format",
        ~is_set("fp8Format") | ~is_false("bf16"),
        "is set, but bf16 is false: parameters would be FP32",
        "set bf16: true",
    ),
    rule(
        "spec.training",
        "fp4Format",
        ~is_set("fp4Format") | ~is_false("bf16"),
        "is set, but bf16 is false: parameters would be FP32",
        "set bf16: true",
    ),
    exclusive("spec.training", "fp8Format", "fp4Format", "set one of the two"),
    rule(
        "spec.training",
        "",
        at_most_one("lrWarmupFraction", "lrWarmupIters", "lrWarmupSamples"),
        "the warm-up is set more than once",
        "keep one of lrWarmupFraction, lrWarmupIters and lrWarmupSamples",
    ),
    rule(
        "spec.training",
        "lrWarmupSamples",
        ~(is_set("trainIters") & (is_set("lrWarmupSamples") | is_set("lrDecaySamples"))),
        "warm-up or decay is in samples, but trainIters sets the length in iterations",
        "set lrWarmupIters and lrDecayIters, or trainSamples",
    ),
    rule(
        "spec.training",
        "lrWarmupIters",
        ~(is_set("trainSamples") & (is_set("lrWarmupIters") | is_set("lrDecayIters"))),
        "warm-up or decay is in iterations, but trainSamples sets the length in samples",
        "set lrWarmupSamples and lrDecaySamples, or trainIters",
    ),
    rule(
        "spec.training",
        "lrWarmupIters",
        ~is_set("trainIters") | is_set("lrDecayIters") | (field("lrWarmupIters", 0) < field("trainIters", 1)),
        "{} is not below trainIters {}",
        "set a smaller value, or a longer run",
        field("lrWarmupIters", 0),
        field("trainIters", 1),
    ),
    rule(
        "spec.training",
        "minLr",
        ~is_set("lr") | ~is_set("minLr") | (field("minLr", 0.0) <= field("lr", 0.0)),
        "is above lr",
        "set at most lr",
    ),
    rule(
        "spec.training",
        "globalBatchSize",
        ~is_set("globalBatchSize") | (field("globalBatchSize", 1) % field("microBatchSize", 1)).equals(0),
        "{} is not divisible by microBatchSize {}",
        "set a multiple of microBatchSize x DP",
        field("globalBatchSize", 1),
        field("microBatchSize", 1),
    ),
)
