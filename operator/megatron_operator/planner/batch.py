"""Global batch sizes of a run, and its number of iterations."""

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import shown
from megatron_operator.api.status import Plan
from megatron_operator.api.training import TrainingSpec
from megatron_operator.catalog.ramp_up import in_samples, iterations_of, of_training, ramp_up


def global_batches(training: TrainingSpec, found: Diagnostics) -> list[int]:
    """All global batch sizes of the run, in order; empty with an error in `found`."""
    text, path = training.step_batch_size_schedule, "spec.training.stepBatchSizeSchedule"
    if text is None:
        if training.global_batch_size is None:
            found.error("spec.training.globalBatchSize", "is missing", "set it")
            return []
        return [training.global_batch_size]
    if training.global_batch_size is not None:
        found.error(path, "is set together with globalBatchSize", "set one of the two")
        return []
    try:
        steps = ramp_up(text)
    except ValueError as error:
        found.error(path, f"{shown(text)}: {error}", "write pairs such as 0:384 200B:768")
        return []
    if training.seq_length is not None:
        try:
            in_samples(steps, training.seq_length)
        except ValueError as error:
            fix = f"write tokens, at least {training.seq_length} apart, not samples or iterations"
            found.error(path, f"{shown(text)}: {error}", fix)
            return []
    return [batch for _, batch in steps]


def iterations(training: TrainingSpec) -> int | None:
    """Iterations of the whole run; None where its length or its batch is missing or refused."""
    if training.train_iters is not None:
        return training.train_iters
    if training.train_samples is None:
        return None
    if training.global_batch_size is not None:
        return training.train_samples // training.global_batch_size
    steps = of_training(training.wire())
    return None if steps is None else iterations_of(steps, training.train_samples)


def full_steps(plan: Plan) -> float | None:
    """Steps of the plan's global batch that the whole run is; None where its length is unknown.

    Under a ramp-up of the batch fewer than its iterations.
    """
    if not plan.train_iters or not plan.train_samples:
        return plan.train_iters
    return min(plan.train_iters, plan.train_samples / plan.global_batch_size)
