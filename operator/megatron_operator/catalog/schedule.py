"""Length of a run and what follows from its batch: tokens to samples or iterations, warm-up, learning rate.

Megatron counts a run either in iterations or in samples: `--train-iters` requires `--lr-warmup-iters` and
`--lr-decay-iters`, `--train-samples` the `-samples` flags. Works on the wire form of `training`.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import FieldError
from megatron_operator.catalog import ramp_up

Training = dict[str, Any]

MOST_TOKENS: Final = 10**18
"""A run of more tokens would have more samples than a status can hold."""
_SUFFIX: Final = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_OTHER: Final = {"Iters": "Samples", "Samples": "Iters"}


def tokens(amount: str) -> int:
    """`1.5T`, of the form that the field `trainTokens` accepts, as a number of tokens (K 1e3 to T 1e12)."""
    factor = _SUFFIX.get(amount[-1], 1)
    return round(float(amount.rstrip("KMBT")) * factor)


def batches(training: Mapping[str, Any]) -> list[int]:
    """The global batch sizes in samples: under a ramp-up those of its steps; none without a batch."""
    schedule = training.get("stepBatchSizeSchedule")
    if schedule:
        steps = [step.rpartition(":")[2] for step in schedule.replace(",", " ").split()]
        return [int(step) for step in steps if re.fullmatch("[0-9]{1,18}", step)]
    batch = training.get("globalBatchSize")
    return [int(batch)] if batch is not None else []


def largest_batch(training: Mapping[str, Any]) -> int | None:
    """The global batch size in samples, under a ramp-up the largest."""
    return max(batches(training), default=None)


def resolve_length(training: Training, found: Diagnostics, *, by_bridge: bool) -> None:
    """Keep exactly one of trainIters and trainSamples in `training`, with warm-up and decay in the same unit.

    Settings of other layers follow the length: they are converted to its unit, and a decay of the catalog is
    removed (Megatron's default is the whole run). Errors and notes go to `found`. `by_bridge`: a function of
    Megatron-Bridge trains, which takes the warm-up as a number alone.
    """
    batch, seq_length = largest_batch(training), training.get("seqLength")
    given = [leaf for leaf in ("trainIters", "trainSamples", "trainTokens") if leaf in training]
    if len(given) > 1:
        named = " and ".join(given)
        found.error("spec.training", f"{named} both set the length of the run", "keep one of them")
        return
    if not given or batch is None or seq_length is None:
        return
    unit = _unit(training)
    if given[0] == "trainTokens":
        amount = training.pop("trainTokens")
        total = tokens(amount)
        if total > MOST_TOKENS:
            found.error("spec.training.trainTokens", f"{amount} is above 10^18 tokens", "set fewer")
            return
        if total == 0:
            fix = "set more, for example 15T; a test of the set-up is trainIters: 10"
            found.error("spec.training.trainTokens", f"{amount} trains nothing", fix)
            return
        per_unit = seq_length if unit == "Samples" else seq_length * batch
        count = training[f"train{unit}"] = max(1, total // per_unit)
        are = "are less than" if total < per_unit else "are"
        found.note(f"{total:,} tokens {are} {count:,} {_unit_name(unit, count)} of {per_unit:,} tokens")
    if unit == "Iters" and "stepBatchSizeSchedule" in training:
        found.error(
            "spec.training.trainIters",
            "iterations differ in size under a batch ramp-up",
            "set trainTokens or trainSamples instead",
        )
    elif _convert_warmup_and_decay(training, unit, given[0], batch, found):
        _check_warmup(training, unit, found, takes_fraction=not by_bridge)


def scale_learning_rate(training: Training, entry_batch: int | None, found: Diagnostics) -> None:
    """Scale lr and minLr with the batch by the rule of lrScaling; values of the recipe itself are kept.

    `entry_batch` is the catalog entry's global batch size. Errors, notes and origins go to `found`.
    """
    origins = found.origins
    rule = training.pop("lrScaling", None)
    batch = largest_batch(training)
    if rule in (None, "none"):
        if entry_batch and batch and batch != entry_batch and origins.get("training.lr") != "recipe":
            found.note(
                f"lr {training.get('lr')} is the catalog's for globalBatchSize {entry_batch}; here it is"
                f" {batch} (lrScaling: sqrt or linear would scale lr)"
            )
        return
    if entry_batch is None:
        found.error(
            "spec.training.lrScaling",
            f"{rule!r} needs the batch size of a catalog entry to scale from",
            "set recipe, or set lr itself and leave lrScaling out",
        )
        return
    if batch is None or batch == entry_batch:
        return
    ratio = batch / entry_batch
    factor = math.sqrt(ratio) if rule == "sqrt" else ratio
    for leaf in ("lr", "minLr"):
        if training.get(leaf) and origins.get(f"training.{leaf}") != "recipe":
            before = training[leaf]
            training[leaf] = float(f"{before * factor:.6g}")
            origins[f"training.{leaf}"] += f", scaled by {rule}"
            found.note(
                f"{leaf} {before} becomes {training[leaf]}: {rule} of globalBatchSize {batch} / {entry_batch}"
            )


def _convert_warmup_and_decay(
    training: Training, unit: str, given: str, batch: int, found: Diagnostics
) -> bool:
    """Convert warm-up and decay to the unit of the length; false with errors in `found`.

    Only a recipe that sets length and these, or one of them twice, in different units is in error. Decays of
    the catalog do not outlive a length that another layer sets; those of the recipe are kept.
    """
    other, origins = _OTHER[unit], found.origins
    own_layer = origins[f"training.{given}"]
    twice = [
        leaf
        for leaf in ("lrWarmup", "lrDecay")
        if all(origins.get(f"training.{leaf}{each}") == "recipe" for each in (unit, other))
    ]
    errors = [
        FieldError(
            f"spec.training.{leaf}{other}",
            f"is set together with {leaf}{unit}, and the run's length is in {_unit_name(unit)} ({given})",
            f"keep {leaf}{unit}",
        )
        for leaf in twice
    ]
    errors += [
        FieldError(
            f"spec.training.{leaf}{other}",
            f"the run's length is in {_unit_name(unit)} ({given})",
            f"set {leaf}{unit}: Megatron does not mix the two",
        )
        for leaf in ("lrWarmup", "lrDecay")
        if f"{leaf}{other}" in training and own_layer == origins[f"training.{leaf}{other}"] == "recipe"
        if leaf not in twice
    ]
    if errors:
        found.extend(errors)
        return False
    for leaf in (f"lrDecay{unit}", f"lrDecay{other}"):
        if leaf in training and origins[f"training.{leaf}"] not in (own_layer, "recipe"):
            found.note(f"{leaf} {training.pop(leaf):,} is dropped: the decay lasts the whole run")
    for name in ("lrWarmup", "lrDecay"):
        before = f"{name}{other}"
        if before in training:
            value = training.pop(before)
            after = _samples(training, value, batch) if unit == "Samples" else math.ceil(value / batch)
            training[f"{name}{unit}"] = after
            found.note(f"{before} {value:,} is {name}{unit} {after:,}, in the unit of {given}")
    return True


def _samples(training: Training, iterations: int, batch: int) -> int:
    """Samples of the first so many iterations, which under a ramp-up have the batches of its first steps."""
    steps = ramp_up.of_training(training)
    return iterations * batch if steps is None else ramp_up.samples_of(steps, iterations)


def _unit(training: Training) -> str:
    """`Iters` or `Samples`: the unit of the length; for tokens that of warm-up, decay or ramp-up."""
    for unit in ("Iters", "Samples"):
        if f"train{unit}" in training:
            return unit
    in_samples = {"lrWarmupSamples", "lrDecaySamples", "stepBatchSizeSchedule"} & training.keys()
    return "Samples" if in_samples else "Iters"


def _unit_name(unit: str, count: int = 2) -> str:
    return ("iteration" if unit == "Iters" else "sample") + ("s" if count > 1 else "")


def _check_warmup(training: Training, unit: str, found: Diagnostics, *, takes_fraction: bool) -> None:
    """The warm-up has to end before the decay (Megatron's OptimizerParamScheduler)."""
    leaf = f"lrWarmup{unit}"
    warmup, decay = training.get(leaf, 0), training.get(f"lrDecay{unit}", training[f"train{unit}"])
    if warmup < decay:
        return
    origin = found.origins.get(f"training.{leaf}", "converted")
    found.error(
        f"spec.training.{leaf}",
        f"a warm-up of {warmup:,} {_unit_name(unit)} ({origin}) does not end before the decay of {decay:,}",
        f"set {leaf} below {decay:,}{', or lrWarmupFraction (0.01)' if takes_fraction else ''}",
    )
