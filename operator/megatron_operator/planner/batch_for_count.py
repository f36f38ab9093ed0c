"""Batch sizes for a count of accelerators that the catalog's own do not suit."""

from collections.abc import Callable
from contextlib import suppress

from megatron_operator.api.errors import InvalidRecipeError, UnsuitableBatch
from megatron_operator.api.status import Plan
from megatron_operator.catalog import Entry
from megatron_operator.planner.admission import PlannedRun
from megatron_operator.planner.divisors import divisors
from megatron_operator.planner.estimate.hardware import GIB
from megatron_operator.planner.notes import beyond_memory

MUCH_FASTER = 1.25
"""Ratio of the speeds above which a batch that differs more from the entry's own is preferred."""


def with_suitable_batch(
    entry: Entry, gpus: int, refused: InvalidRecipeError, planned: Callable[[int], PlannedRun]
) -> tuple[PlannedRun, int]:
    """The run with a batch that suits the count, and that batch in samples.

    `refused` is the error of the entry's own batch: of the sizes that it names the faster one is taken. Where
    it names none, or they are much slower, it is the next size that every layout divides: Megatron-Bridge's
    functions keep their micro batch; for Megatron Core's loop the planner chooses it. Raises
    InvalidRecipeError where none can run.
    """
    own = entry.training.global_batch_size or 1
    micro = entry.training.micro_batch_size if entry.engine == "bridge" else None
    of = gpus * (micro or 1)
    nearest = [size for each in refused.errors if isinstance(each, UnsuitableBatch) for size in each.suitable]
    runs = []
    for batch in sorted(nearest, key=lambda size: abs(size - own)):
        with suppress(InvalidRecipeError):
            runs.append((planned(batch), batch))
    best = max(runs, key=lambda each: _speed(each[0]), default=None)
    of_all = -(-own // of) * of
    try:
        run = planned(of_all)
    except InvalidRecipeError:
        if best is None:
            raise
        return best
    if best is None or _speed(run) > MUCH_FASTER * _speed(best[0]):
        return run, of_all
    return best


def smaller_micro_batch(found: Plan, planned: Callable[[int], PlannedRun]) -> str | None:
    """The largest smaller micro batch with which a layout that may not fit does; None where none does."""
    if beyond_memory(found) is None:
        return None
    for size in divisors(found.micro_batch_size)[-2::-1]:
        with suppress(InvalidRecipeError):
            smaller = planned(size).plan
            if smaller.memory_per_gpu is not None and beyond_memory(smaller) is None:
                return f"microBatchSize {size} needs {smaller.memory_per_gpu.total / GIB:.1f} GiB"
    return None


def lacks_only_a_batch(refused: InvalidRecipeError) -> bool:
    """Whether another global batch size may be all that a refused recipe needs."""
    return all(error.field == "spec.training.globalBatchSize" for error in refused.errors)


def _speed(run: PlannedRun) -> float:
    return run.plan.expected.tokens_per_second_per_gpu if run.plan.expected else 0.0
