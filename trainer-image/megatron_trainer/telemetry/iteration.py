"""One iteration of training: reported by ranks, shared between pods, appended to the progress file."""

from dataclasses import dataclass

from megatron_contract.progress import OF_THE_ITERATION
from megatron_contract.wire import Message


@dataclass(frozen=True, slots=True)
class IterationRecord(Message):
    """Metrics of one iteration. None where the reporting rank does not know the value."""

    iteration: int
    generation: int
    """The generation that did it."""
    train_iters: int | None = None
    """Iterations of the whole run."""
    lm_loss: float | None = None
    """Reduced over all data-parallel ranks; known on the last pipeline stage."""
    learning_rate: float | None = None
    step_seconds: float | None = None
    tokens_per_second: float | None = None
    tflops_per_gpu: float | None = None
    consumed_samples: int | None = None
    time: float | None = None
    """When it was done, Unix seconds."""
    save_seconds: float | None = None
    """In saves since the iteration before it, as the progress file has it; None for none."""
    evaluate_seconds: float | None = None
    """In evaluations since the iteration before it; None for none."""


METRICS = ("train_iters", *OF_THE_ITERATION)
"""Fields of IterationRecord that /progress reports under the same names."""
