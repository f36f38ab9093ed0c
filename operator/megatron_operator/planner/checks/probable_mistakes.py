"""Warnings for values of a recipe that Megatron runs with, and that are probably slips."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from megatron_operator.api.errors import shown
from megatron_operator.api.status import Plan
from megatron_operator.catalog import hub, ramp_up
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.durations import duration
from megatron_operator.planner.estimate.checkpoint import checkpoint_bytes
from megatron_operator.planner.estimate.hardware import GIB

_LARGE_RATE: Final = 0.01
"""Learning rate from which Adam is expected to diverge: the catalog's largest, of a smoke test, is 0.005."""
_LONG_WARM_UP: Final = 0.5
"""Share of a run."""
_LONG_RUN: Final = 3600.0
"""Seconds of training that may be repeated after a failure."""
_SHORT_RENDEZVOUS: Final = 60
"""Seconds within which pods of several nodes hardly all start."""
_FREQUENT_SAVES: Final = 60.0
"""Seconds between two checkpoints that few runs need."""
FAST_WRITES: Final = 1.0
"""GiB per second from which the rate that checkpoints need of a volume is shown."""


def probable_mistakes(resolved: ResolvedRecipe, plan: Plan) -> list[str]:
    """A warning for each such value that the recipe itself sets."""
    return [
        *_rate(resolved),
        *_warm_up(resolved, plan),
        *_ramp_up(resolved),
        *_intervals(resolved, plan),
        *_frequent_saves(resolved, plan),
        *_rendezvous(resolved, plan),
        *_repeated_datasets(resolved),
        *_tokenizer_of_a_hub(resolved),
        *_adapters(resolved),
        *_unused_exchange(resolved, plan),
    ]


def _rate(resolved: ResolvedRecipe) -> Iterator[str]:
    lr = resolved.training.lr
    if lr is not None and lr >= _LARGE_RATE and resolved.is_set_by_user("training.lr"):
        yield f"training.lr {lr:g}: training is expected to diverge; usual are 1e-5 to 1e-3"


def _warm_up(resolved: ResolvedRecipe, plan: Plan) -> Iterator[str]:
    training = resolved.training
    for name, unit, warm_up, length in (
        ("lrWarmupIters", "iterations", training.lr_warmup_iters, plan.train_iters),
        ("lrWarmupSamples", "samples", training.lr_warmup_samples, plan.train_samples),
    ):
        is_own = resolved.is_set_by_user(f"training.{name}")
        if warm_up and length and warm_up > _LONG_WARM_UP * length and is_own:
            yield f"training.{name} {warm_up:,} is {warm_up / length:.0%} of the run's {length:,} {unit}"


def _ramp_up(resolved: ResolvedRecipe) -> Iterator[str]:
    """A batch that begins with or after the end of the run."""
    training = resolved.training
    steps, length = ramp_up.of_training(training.wire()), training.train_samples
    late = next((step for step in steps or () if length is not None and step[0] >= length), None)
    if late is not None:
        yield (
            f"training.stepBatchSizeSchedule: the batch {late[1]:,} begins at sample {late[0]:,}, and the run"
            f" ends after {length:,}"
        )


def _tokenizer_of_a_hub(resolved: ResolvedRecipe) -> Iterator[str]:
    name = hub.tokenizer_name(resolved)
    if name is not None and not hub.asks_hub(resolved):
        yield (
            f"data.tokenizer.tokenizerModel {shown(name)} is a name on the model hub, which trainers do not"
            ' ask unless env has HF_HUB_OFFLINE: "0"; else the run fails without it in the cache of the image'
        )


def _intervals(resolved: ResolvedRecipe, plan: Plan) -> Iterator[str]:
    """Intervals of the recipe that are longer than the run."""
    training, length = resolved.training, plan.train_iters
    if length is None:
        return
    every = training.eval_interval
    is_own = resolved.is_set_by_user("training.evalInterval")
    if every and every > length and training.eval_iters != 0 and is_own:
        yield (
            f"training.evalInterval {every:,} is above the run's {length:,} iterations: nothing is evaluated"
            " while it trains"
        )
    every, expected = resolved.checkpoint.save_interval, plan.expected
    is_own = resolved.is_set_by_user("checkpoint.saveInterval") and resolved.checkpoint.local is None
    if not every or every <= length or expected is None or not is_own:
        return
    if length * expected.step_seconds > _LONG_RUN:
        yield (
            f"the run's {length:,} iterations are fewer than checkpoint.saveInterval {every:,}: a failure"
            " makes it start from the beginning"
        )


def _frequent_saves(resolved: ResolvedRecipe, plan: Plan) -> Iterator[str]:
    every = resolved.checkpoint.save_interval
    if not every or plan.expected is None or not resolved.is_set_by_user("checkpoint.saveInterval"):
        return
    seconds = every * plan.expected.step_seconds
    size = (checkpoint_bytes(resolved, plan) or 0) / GIB
    if seconds < _FREQUENT_SAVES and size / seconds > FAST_WRITES:
        yield (
            f"checkpoint.saveInterval {every:,} saves {size:.1f} GiB every {duration(seconds)}: the volume"
            f" has to take {size / seconds:.1f} GiB/s"
        )


def _rendezvous(resolved: ResolvedRecipe, plan: Plan) -> Iterator[str]:
    limit = resolved.recovery.rendezvous_timeout
    if limit < _SHORT_RENDEZVOUS and plan.nodes > 1:
        yield (
            f"recovery.rendezvousTimeout {limit}: pods that do not meet within {limit} s are all re-created;"
            " the default is 600"
        )


def _repeated_datasets(resolved: ResolvedRecipe) -> Iterator[str]:
    times = Counter(part.path for part in resolved.data.blend or ())
    for path, count in times.items():
        if count > 1:
            yield f"data.blend names {path} {count} times: the weights of a dataset add up"


def _adapters(resolved: ResolvedRecipe) -> Iterator[str]:
    """Two matrices of hidden size x dim are no fewer weights than the one that they adapt."""
    dim = resolved.peft.dim if resolved.peft else None
    hidden = resolved.model.hidden_size
    if dim and hidden and 2 * dim >= hidden:
        yield (
            f"peft.dim {dim:,}: adapters of half the hidden size {hidden:,} or more have no fewer weights"
            " than the layers; usual are 8 to 64"
        )


def _unused_exchange(resolved: ResolvedRecipe, plan: Plan) -> Iterator[str]:
    kind = resolved.parallelism.cp_comm_type
    if plan.context_parallel_size == 1 and kind and resolved.is_set_by_user("parallelism.cpCommType"):
        yield f"cpCommType {kind} is not used: CP is 1"
