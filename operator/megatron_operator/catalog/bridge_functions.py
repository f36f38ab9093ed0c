"""Selects a recipe's Megatron-Bridge function and finds settings that the function does not support."""

from collections.abc import Iterator
from typing import Final

from megatron_operator.api.base import ApiModel
from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.api.training import TrainingSpec
from megatron_operator.catalog import bridge_sizes, bridge_support
from megatron_operator.catalog.entry import Entry, PublishedLayout
from megatron_operator.catalog.merge import Settings

TRAINING: Final = frozenset(
    {"seqLength", "microBatchSize", "globalBatchSize", "trainIters", "trainSamples", "trainTokens"}
    | {
        "lr",
        "minLr",
        "lrWarmupIters",
        "lrDecayIters",
        "lrDecayStyle",
        "lrScaling",
        "optimizer",
        "weightDecay",
    }
    | {"clipGrad", "adamBeta1", "adamBeta2", "adamEps", "seed", "logInterval"}
    | {"bf16", "fp8Format", "fp4Format"}
)
"""Settings of `training` that the command can pass on."""
EVALUATION: Final = frozenset({"evalInterval", "evalIters"})
"""Further ones that the operator passes on to the functions that it starts."""
PARALLELISM: Final = frozenset(
    {"tensorModelParallelSize", "pipelineModelParallelSize", "numVirtualStagesPerPipelineRank"}
    | {"contextParallelSize", "expertModelParallelSize", "expertTensorParallelSize", "sequenceParallel"}
    | {"decoderFirstPipelineNumLayers", "decoderLastPipelineNumLayers", "pipelineModelParallelLayout"}
    | {"accountForEmbeddingInPipelineSplit", "accountForLossInPipelineSplit"}
    | {"recomputeGranularity", "recomputeMethod", "recomputeNumLayers"}
)
"""Settings of `parallelism` that the command can pass on."""
_WHOLE: Final = {
    "model": ": its function builds the model",
    "megatronArgs": ", which does not take the flags of Megatron Core's loop",
}
"""Whole sections of `spec` that are not passed on, and why."""
_WARM_UPS: Final = frozenset({"training.lrWarmupFraction", "training.lrWarmupSamples"})


def select_function(
    entry: Entry, named: PublishedLayout | None, hardware: str, spec: MegatronRecipeSpec
) -> PublishedLayout:
    """The function that starts an entry of engine `bridge`: the named one, or the closest one.

    In this order: one that the operator starts, not a benchmark (they run on random data), the requested
    precision, the same hardware, the closest number of accelerators. Raises InvalidRecipeError where the
    entry has no function.
    """
    if not any(layout.function for layout in entry.layouts):
        message = f"{entry.name} has engine bridge, but no function of Megatron-Bridge"
        raise InvalidRecipeError(
            [FieldError("spec.recipe", message, f"add functions: {{{entry.name}: TABLE}} to its file")]
        )
    count = spec.accelerator.count
    fp8 = spec.training is not None and spec.training.fp8_format is not None
    fp4 = spec.training is not None and spec.training.fp4_format is not None

    def distance(layout: PublishedLayout) -> tuple[bool, bool, bool, bool, float, bool]:
        return (
            entry.starts and not entry.can_start(layout),
            bool(layout.benchmark),
            (layout.training.fp8_format is not None, layout.training.fp4_format is not None) != (fp8, fp4),
            hardware not in layout.accelerators,
            max(layout.count / count, count / layout.count),
            layout.precision != "bf16",
        )

    return named or min(entry.layouts, key=distance)


def unsupported_setting_errors(
    spec: MegatronRecipeSpec, function: PublishedLayout, entry: Entry
) -> list[FieldError]:
    """Errors for settings of a recipe that cannot be passed on to the function of its entry."""
    started = entry.starts
    sections: list[tuple[str, ApiModel | None, frozenset[str]]] = [
        ("training", spec.training, TRAINING | EVALUATION if started else TRAINING),
        ("parallelism", spec.parallelism, PARALLELISM),
    ]
    sized = started and bridge_support.leaves_sizes_open(function.function or "")
    whole = (("model", None if sized else spec.model), ("megatronArgs", spec.megatron_args))
    unsupported = [name for name, value in whole if value]
    for section, value, supported in sections:
        unsupported += [
            f"{section}.{leaf}" for leaf in (value.wire() if value else {}) if leaf not in supported
        ]
    errors = [
        FieldError(
            f"spec.{field}",
            f"is not passed to Megatron-Bridge{_why_not_passed(field, function)}",
            _warm_up_fix(spec.training, function) if field in _WARM_UPS and spec.training else "leave it out",
        )
        for field in unsupported
    ]
    errors += _decay_errors(spec, entry)
    if sized and spec.model is not None:
        errors += bridge_sizes.refused_settings(spec.model)
    asked = spec.training or TrainingSpec()
    for field, number, own in (
        ("fp8Format", asked.fp8_format, function.training.fp8_format),
        ("fp4Format", asked.fp4_format, function.training.fp4_format),
    ):
        if number is not None and number != own:
            message = f"{number} is not the precision of {function.function} ({function.precision})"
            has_other = any(each.training.wire().get(field) == number for each in entry.layouts)
            # Functions that the operator starts train in BF16.
            other = "set recipe to a function of that precision, or " if has_other and not started else ""
            errors.append(FieldError(f"spec.training.{field}", message, f"{other}leave it out"))
    return errors


def _why_not_passed(field: str, function: PublishedLayout) -> str:
    """What follows `is not passed to Megatron-Bridge`."""
    if field in _WHOLE:
        return _WHOLE[field]
    leaf, own = field.rpartition(".")[2], function.training
    if leaf == "stepBatchSizeSchedule":
        return ", whose functions train with one batch size"
    if (leaf.startswith("fp8") and not own.fp8_format) or (leaf.startswith("fp4") and not own.fp4_format):
        return f": {function.function} trains in {function.precision}"
    return f": {function.function} sets it"


def _warm_up_fix(asked: TrainingSpec, function: PublishedLayout) -> str:
    """How to set a warm-up in iterations, the only unit that functions take."""
    if asked.train_samples is not None:
        return "set training.trainIters and training.lrWarmupIters"
    given = asked.lr_decay_iters or asked.train_iters
    length = given or (None if asked.train_tokens else function.training.train_iters)
    if asked.lr_warmup_fraction is None or length is None:
        return "set training.lrWarmupIters"
    # A short run rounds a fraction to none; a warm-up ends before the run does.
    warm_up = min(max(1, round(asked.lr_warmup_fraction * length)), length - 1)
    return f"set training.lrWarmupIters ({warm_up:,} of {length:,})"


def _decay_errors(spec: MegatronRecipeSpec, entry: Entry) -> Iterator[FieldError]:
    """Without `lr_wsd_decay_iters` Megatron-Bridge decays over the whole run (its `ConfigContainer`)."""
    asked = spec.training.lr_decay_style if spec.training else None
    if asked == "WSD" != entry.training.lr_decay_style:
        message = "WSD decays at the end of the run, and the length of that decay is not set"
        fix = "set another style: no setting of a recipe gives Megatron-Bridge that length"
        yield FieldError("spec.training.lrDecayStyle", message, fix)


def function_settings(function: PublishedLayout, entry: Entry, found: Diagnostics) -> Settings:
    """Batch, sequence length, learning rate and length of a function, without its layout.

    Settings that Megatron Core's training loop does not support keep the catalog's value, with a note.
    """
    training = dict(function.training.wire())
    for of_layout in ("microBatchSize", "fp4Format", "fp4ParamGather"):
        training.pop(of_layout, None)
    if (entry.engine == "megatron" or entry.starts) and training.pop("optimizer", None) is not None:
        optimizer, own = function.training.optimizer, entry.training.optimizer
        if entry.engine == "bridge":
            # The image lacks the package of Megatron's Muon.
            training["optimizer"] = own = "adam"
        found.note(f"{function.function} trains with {optimizer}; here it is {own}")
    if entry.engine == "megatron":
        warm_up, length = function.training.lr_warmup_iters or 0, function.training.train_iters
        if length is not None and warm_up >= length:
            training["lrWarmupIters"] = 0
            found.note(
                f"the warm-up of {function.function} ({warm_up}) is longer than its run ({length}): left out"
            )
    return {"training": training}
