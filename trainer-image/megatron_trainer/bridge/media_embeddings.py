"""Embeddings of tokens, with features of images and sound in the places of theirs."""

from collections.abc import Sequence
from typing import Any

import torch


def embed(
    language_model: Any,
    input_ids: torch.Tensor,
    media: Sequence[tuple[int, torch.Tensor]],
    *,
    sequence_parallel: bool,
) -> torch.Tensor:
    """Return embeddings [length, batch, hidden], with `sequence_parallel` those of this rank's tokens.

    `input_ids` [batch, length]; `media`: ids of tokens, and features [tokens, hidden] that replace the
    embeddings of these, in their order.
    """
    from megatron.core.tensor_parallel import scatter_to_sequence_parallel_region

    embeddings: torch.Tensor = language_model.embedding(input_ids=input_ids, position_ids=None)
    if media:
        of_sequences = embeddings.transpose(0, 1).clone()
        for token, features in media:
            of_sequences[input_ids == token] = features.to(embeddings.dtype)
        embeddings = of_sequences.transpose(0, 1).contiguous()
    return scatter_to_sequence_parallel_region(embeddings) if sequence_parallel else embeddings
