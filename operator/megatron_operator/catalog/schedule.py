"""How long a run is and what follows from its batch: tokens to samples or iterations, warm-up, learning rate.

Megatron counts a run in iterations or in samples, never in both: `--train-iters` goes with
`--lr-warmup-iters` and `--lr-decay-iters`, `--train-samples` with the `-samples` ones.
Works on the wire form of `training`.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from megatron_operator.api.errors import FieldError

Training = dict[str, Any]

_SUFFIX: Final = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_OTHER: Final = {"Iters": "Samples", "Samples": "Iters"}


def tokens(amount: str) -> int:
    """`1.5T` as a number."""
    factor = _SUFFIX.get(amount[-1], 1)
    return round(float(amount.rstrip("KMBT")) * factor)


def largest_batch(training: Mapping[str, Any]) -> int | None:
    """The global batch, under a ramp-up its last one."""
    schedule = training.get("stepBatchSizeSchedule")
    if schedule:
        steps = [step.rpartition(":")[2] for step in schedule.split()]
        return max((int(step) for step in steps if step.isdigit()), default=None)
    batch = training.get("globalBatchSize")
    return int(batch) if batch is not None else None


def resolve_length(training: Training, origins: Mapping[str, str], notes: list[str]) -> list[FieldError]:
    """Leave exactly one of trainIters and trainSamples in `training`, warm-up and decay in the same unit.

    What came from below the length's own layer follows it: a warm-up is carried into its unit, a decay is
    dropped (Megatron's default is the whole run). Returns what cannot be.
    """
    batch, seq_length = largest_batch(training), training.get("seqLength")
    given = [leaf for leaf in ("trainIters", "trainSamples", "trainTokens") if leaf in training]
    if len(given) > 1:
        named = " and ".join(given)
        return [FieldError("spec.training", f"{named} both set the length of the run", "keep one of them")]
    if not given or batch is None or seq_length is None:
        return []
    unit = _unit(training)
    if given[0] == "trainTokens":
        total = tokens(training.pop("trainTokens"))
        per_unit = seq_length if unit == "Samples" else seq_length * batch
        training[f"train{unit}"] = max(1, total // per_unit)
        notes.append(
            f"{total:,} tokens are {training[f'train{unit}']:,} {_words(unit)} of {per_unit:,} tokens"
        )
    if unit == "Iters" and "stepBatchSizeSchedule" in training:
        return [
            FieldError(
                "spec.training.trainIters",
                "a batch ramp-up makes iterations of different size",
                "give trainTokens or trainSamples instead",
            )
        ]
    return _convert_warmup_and_decay(training, unit, given[0], batch, origins, notes) or _warmup_errors(
        training, unit, origins
    )


def scale_learning_rate(
    training: Training, origins: dict[str, str], entry_batch: int | None, notes: list[str]
) -> list[FieldError]:
    """Let lr and minLr follow the batch by lrScaling's rule; what the recipe itself sets stays as it is."""
    rule = training.pop("lrScaling", None)
    batch = largest_batch(training)
    if rule in (None, "none"):
        if entry_batch and batch and batch != entry_batch and origins.get("training.lr") != "recipe":
            notes.append(
                f"lr {training.get('lr')} is the catalog's for globalBatchSize {entry_batch}; here it is"
                f" {batch} (lrScaling: sqrt or linear would let it follow)"
            )
        return []
    if entry_batch is None:
        return [
            FieldError(
                "spec.training.lrScaling",
                f"{rule!r} needs a batch to scale from, and no catalog entry gives one",
                "name a recipe, or set lr itself and leave lrScaling out",
            )
        ]
    if batch is None or batch == entry_batch:
        return []
    ratio = batch / entry_batch
    factor = math.sqrt(ratio) if rule == "sqrt" else ratio
    for leaf in ("lr", "minLr"):
        if leaf in training and origins.get(f"training.{leaf}") != "recipe":
            before = training[leaf]
            training[leaf] = float(f"{before * factor:.6g}")
            origins[f"training.{leaf}"] += f", scaled by {rule}"
            notes.append(
                f"{leaf} {before} becomes {training[leaf]}: {rule} of globalBatchSize {batch} / {entry_batch}"
            )
    return []


def _convert_warmup_and_decay(
    training: Training, unit: str, given: str, batch: int, origins: Mapping[str, str], notes: list[str]
) -> list[FieldError]:
    other = _OTHER[unit]
    own_layer = origins[f"training.{given}"]
    errors = [
        FieldError(
            f"spec.training.{leaf}{other}",
            f"the run's length is in {_words(unit)} ({given})",
            f"give {leaf}{unit}; Megatron does not mix the two",
        )
        for leaf in ("lrWarmup", "lrDecay")
        if f"{leaf}{other}" in training and origins[f"training.{leaf}{other}"] == own_layer
    ]
    if errors:
        return errors
    for leaf in (f"lrDecay{unit}", f"lrDecay{other}"):
        if leaf in training and origins[f"training.{leaf}"] != own_layer:
            notes.append(
                f"{leaf} {training.pop(leaf):,} gives way to the run's length: the decay lasts all of it"
            )
    before = f"lrWarmup{other}"
    if before in training:
        value = training.pop(before)
        after = value * batch if unit == "Samples" else math.ceil(value / batch)
        training[f"lrWarmup{unit}"] = after
        notes.append(f"{before} {value:,} is lrWarmup{unit} {after:,}, in the unit of {given}")
    return []


def _unit(training: Training) -> str:
    """`Iters` or `Samples`: what the length says, for tokens what warm-up, decay or ramp-up say."""
    for unit in ("Iters", "Samples"):
        if f"train{unit}" in training:
            return unit
    in_samples = {"lrWarmupSamples", "lrDecaySamples", "stepBatchSizeSchedule"} & training.keys()
    return "Samples" if in_samples else "Iters"


def _words(unit: str) -> str:
    return "iterations" if unit == "Iters" else "samples"


def _warmup_errors(training: Training, unit: str, origins: Mapping[str, str]) -> list[FieldError]:
    """Megatron wants the warm-up to end before the decay does (OptimizerParamScheduler)."""
    leaf = f"lrWarmup{unit}"
    warmup, decay = training.get(leaf, 0), training.get(f"lrDecay{unit}", training[f"train{unit}"])
    if warmup < decay:
        return []
    return [
        FieldError(
            f"spec.training.{leaf}",
            f"a warm-up of {warmup:,} {_words(unit)} ({origins.get(f'training.{leaf}', 'carried over')})"
            f" does not end before the decay of {decay:,}",
            f"set {leaf} below {decay:,}, or lrWarmupFraction (0.01)",
        )
    ]
