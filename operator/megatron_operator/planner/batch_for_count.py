"""A global batch size for a count of accelerators that the catalog's own does not suit."""

from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.catalog import Entry


def batch_for(entry: Entry, gpus: int) -> int:
    """The next global batch size, in samples, that every layout on `gpus` accelerators can divide.

    Megatron-Bridge's functions keep their micro batch; for Megatron Core's loop the planner chooses it.
    """
    micro = entry.training.micro_batch_size if entry.engine == "bridge" else None
    of = gpus * (micro or 1)
    return -(-(entry.training.global_batch_size or 1) // of) * of


def lacks_only_a_batch(refused: InvalidRecipeError) -> bool:
    """Whether another global batch size may be all that a refused recipe needs."""
    return all(error.field == "spec.training.globalBatchSize" for error in refused.errors)
