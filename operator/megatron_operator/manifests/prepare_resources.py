"""Requests of a pod that prepares data, by what it runs; the peaks that were measured are in docs/data.md.

A worker holds one batch of documents, never a file, so requests do not depend on the size of the sources, but
the index of a run's samples grows with their number.
There are no limits: a long document needs more for a while, and tokenizing takes what the node has idle.
"""

from fractions import Fraction
from typing import Final

from megatron_operator.api import quantity
from megatron_operator.api.recipe import PrepareResources, PrepareSpec
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.manifests.metadata import Manifest

_MEBI: Final = 1 << 20
CPU: Final = "1"
"""Chats and samples are prepared by one thread; documents are tokenized by as many as the node has cores."""
DOCUMENTS: Final = 1024 * _MEBI
"""transformers, which checks the tokenizer, and a batch of documents with their tokens."""
CHATS: Final = 1536 * _MEBI
"""Megatron-Bridge, whose functions find the answers, and a chat."""
SAMPLES: Final = 2048 * _MEBI
"""The same, and the media of a sample as the model's processor takes them."""


def requests(resolved: ResolvedRecipe, prepare: PrepareSpec, index: int) -> Manifest:
    """The container's `resources`; building the index of the run's samples takes `index` bytes, 0 without."""
    own = prepare.resources or PrepareResources()
    memory = own.memory or quantity.memory(Fraction(memory_needed(resolved) + index))
    return {"requests": {"cpu": own.cpu or CPU, "memory": memory}}


def check_requests(resolved: ResolvedRecipe, index: int) -> Manifest:
    """The `resources` of a pod that checks data which were prepared elsewhere.

    `index` are the bytes that building the index of the run's samples takes, 0 without one.
    """
    memory = quantity.memory(Fraction(memory_needed(resolved) + index))
    return {"requests": {"cpu": CPU, "memory": memory}}


def memory_needed(resolved: ResolvedRecipe) -> int:
    """Bytes that a pod needs for documents of usual lengths, without the index of the samples."""
    if resolved.fine_tunes or resolved.reads_latents:
        return SAMPLES if resolved.media else CHATS
    return DOCUMENTS
