"""The memory that building the index of a run's samples takes, which decides whether a Job builds it."""

from collections.abc import Iterator
from fractions import Fraction
from typing import Final

from megatron_operator.api import quantity
from megatron_operator.api.platform import CpuJobs
from megatron_operator.api.status import Plan
from megatron_operator.catalog.resolved import ResolvedRecipe

_MEBI: Final = 1 << 20
_GIBI: Final = 1 << 30
_PROCESS: Final = 1024 * _MEBI
"""The process that builds the index with Megatron."""
_PROCESS_OF_BRIDGE: Final = 1536 * _MEBI
"""The same with Megatron-Bridge."""
_SAMPLE: Final = (2 * 8 + 8 + 2 + 8) + 30
"""Bytes of a sample in the index, about. The second number is a margin for the index of the documents, whose
number is not known here: 4 bytes for each of an epoch, and 16 while Megatron builds it."""
DEFAULT_LARGEST: Final = "8Gi"
"""Memory above which the index is left to rank 0: nodes without accelerators may not have it."""


def index_memory(samples: int, *, of_bridge: bool) -> int:
    """Bytes that building the index takes, in whole MiB.

    Megatron holds all of it: a row of two numbers and one of the order for each sample (GPTDataset), and of a
    blend one of the dataset and one of the sample there (BlendedDataset).
    """
    return (_PROCESS_OF_BRIDGE if of_bridge else _PROCESS) + -(-samples * _SAMPLE // _MEBI) * _MEBI


def largest(jobs: CpuJobs | None) -> str:
    """The memory that a Job may take for an index, as a quantity."""
    return (jobs and jobs.max_index_memory) or DEFAULT_LARGEST


def is_too_large(memory: int, jobs: CpuJobs | None) -> bool:
    """Whether building an index of so many bytes is left to rank 0."""
    return memory > quantity.parse(largest(jobs))


def index_notes(resolved: ResolvedRecipe, plan: Plan) -> Iterator[str]:
    """A note about an index that is left to rank 0, as it is too large for a Job."""
    data = resolved.data
    if resolved.fine_tunes or resolved.reads_latents or data.mock_data or data.check is False:
        return
    if not (data.blend or data.sources or data.prepare):
        return
    samples = plan.train_samples or (plan.train_iters or 0) * plan.global_batch_size
    memory = index_memory(samples, of_bridge=resolved.engine == "bridge")
    if is_too_large(memory, resolved.cpu_jobs):
        needed = quantity.memory(Fraction(-(-memory // _GIBI) * _GIBI))
        yield (
            f"the index of {samples:,} samples is left to rank 0, while the other ranks wait on their"
            f" accelerators: building it takes {memory / _GIBI:.1f} GiB, and a Job may take"
            f" {largest(resolved.cpu_jobs)} (platform.cpuJobs.maxIndexMemory; {needed} suffices)"
        )
