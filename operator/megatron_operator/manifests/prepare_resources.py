"""Requests of a pod that prepares data, by what it runs; the peaks that were measured are in docs/data.md.

A worker holds one batch of documents, never a file, so requests do not depend on the size of the sources.
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
INDEX: Final = 1024 * _MEBI
"""Besides: the process that builds the index of the run's samples with Megatron."""
CHATS: Final = 1536 * _MEBI
"""Megatron-Bridge, whose functions find the answers, and a chat."""
SAMPLES: Final = 2048 * _MEBI
"""The same, and the media of a sample as the model's processor takes them."""


def requests(resolved: ResolvedRecipe, prepare: PrepareSpec, *, index: bool) -> Manifest:
    """The container's `resources`; with `index` it builds the index of the run's samples."""
    own = prepare.resources or PrepareResources()
    memory = own.memory or quantity.memory(Fraction(memory_needed(resolved, index=index)))
    return {"requests": {"cpu": own.cpu or CPU, "memory": memory}}


def memory_needed(resolved: ResolvedRecipe, *, index: bool) -> int:
    """Bytes that a pod needs for documents of usual lengths."""
    if resolved.fine_tunes:
        return SAMPLES if resolved.media else CHATS
    return DOCUMENTS + (INDEX if index else 0)
