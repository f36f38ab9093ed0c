"""A recipe that keeps or exports the checkpoint with the lowest validation loss: default and checks."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import FieldError
from megatron_operator.api.fine_tuning import ExportSpec
from megatron_operator.api.recipe import CheckpointSpec
from megatron_operator.catalog import ramp_up
from megatron_operator.catalog.data import validates

KEEP_BEST = "spec.checkpoint.keepBest"
WHEN = "spec.export.when"
_EVERY = "training.evalInterval"


def complete_evaluations(
    asked: CheckpointSpec, export: ExportSpec | None, training: dict[str, Any], save: int, found: Diagnostics
) -> None:
    """Evaluate each checkpoint of a run whose best one would always be the last.

    Not where the recipe itself sets evalInterval, or nothing is saved before the end.
    """
    if not (asked.keep_best or (export is not None and "best" in export.moments)):
        return
    every, total = training.get("evalInterval"), _iterations(training)
    if every is None or total is None or save >= total or found.is_set_by_user(_EVERY):
        return
    if math.lcm(save, every) >= total:
        training["evalInterval"] = save
        found.origin(_EVERY, "checkpoint.saveInterval")
        found.note(
            f"evalInterval {every:,} becomes {save:,}, that of checkpoint.saveInterval: the best checkpoint"
            " is one that was evaluated"
        )


def best_checkpoint_errors(
    asked: CheckpointSpec, export: ExportSpec | None, settings: Mapping[str, Mapping[str, Any]], save: int
) -> Iterator[FieldError]:
    """Errors of `checkpoint.keepBest` and `export.when`; none for a recipe that asks for no best checkpoint.

    `settings`: complete wire form of `training` and `data`; `save`: iterations between two checkpoints.
    """
    when = [] if export is None else export.moments
    if len(set(when)) < len(when):
        yield FieldError(WHEN, f"names {when[0]} twice", f"set [{when[0]}], or [best, end]")
    if "best" in when and asked.keep_best is False:
        message = f"false deletes the checkpoint that export.when: [{', '.join(when)}] exports"
        yield FieldError(KEEP_BEST, message, "leave it out, or set export.when: [end]")
    if "best" in when or asked.keep_best:
        field = WHEN if "best" in when else KEEP_BEST
        yield from _evaluation_errors(field, settings["training"], settings["data"], save)


def _evaluation_errors(
    field: str, training: Mapping[str, Any], data: Mapping[str, Any], save: int
) -> Iterator[FieldError]:
    """The error of a run in which no checkpoint before the last one has an evaluation.

    Both engines evaluate at multiples of evalInterval, save at multiples of saveInterval, and do both after
    the last iteration.
    """
    if training.get("evalIters") == 0:
        message = "needs evaluations of the validation data, and training.evalIters is 0"
        yield FieldError(field, message, "set training.evalIters to 1 or more")
        return
    split = data.get("split")
    if split is not None and not data.get("mockData") and not validates(split):
        message = f"needs validation data, and data.split {split} has none"
        yield FieldError(field, message, "set data.split, for example 98,2,0")
        return
    every, total = training.get("evalInterval"), _iterations(training)
    if every is None or total is None or math.lcm(save, every) < total:
        return
    message = (
        f"would always choose the last iteration, {total:,}: checkpoints are saved every {save:,} iterations "
        f"(saveInterval) and evaluated every {every:,} (evalInterval), which meet first at "
        f"{math.lcm(save, every):,}"
    )
    yield FieldError(field, message, _fix(save, every, total))


def _fix(save: int, every: int, total: int) -> str:
    if save < total:
        return f"set training.evalInterval to {save}, or to a divisor of it"
    if every < total:
        return f"set checkpoint.saveInterval to {every}, or to a multiple of it below {total}"
    part = max(1, total // 10)
    return f"set both checkpoint.saveInterval and training.evalInterval, for example to {part}"


def _iterations(training: Mapping[str, Any]) -> int | None:
    """Iterations of the run; None where they are not known before it runs."""
    if (given := training.get("trainIters")) is not None:
        return int(given)
    samples, batch = training.get("trainSamples"), training.get("globalBatchSize")
    if samples is None:
        return None
    if batch is not None:
        return int(samples) // int(batch)
    steps = ramp_up.of_training(training)
    return None if steps is None else ramp_up.iterations_of(steps, int(samples))
