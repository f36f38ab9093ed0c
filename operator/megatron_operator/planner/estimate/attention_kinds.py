"""Sizes of attention that only some layers of a model have, in elements."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads of softmax attention, where they differ between layers with and without a window."""

    heads: int
    groups: int
    head_dim: int
    windowed: bool


@dataclass(frozen=True, slots=True)
class Index:
    """An indexer, which scores every key with heads of its own to select `topk` of them for each query."""

    heads: int
    head_dim: int
    topk: int


@dataclass(frozen=True, slots=True)
class Indexed:
    """Latent attention to the keys that an indexer selects: DeepSeek sparse attention
    (`DSAttention` in `megatron/core/transformer/experimental_attention_variant/dsa.py`)."""

    index: Index
    shared: bool = False
    """Whether the layer has no indexer, and attends to what that of an earlier layer selected."""


@dataclass(frozen=True, slots=True)
class Compressed:
    """DeepSeek-V4's attention: a window of tokens, and compressed ones before it
    (`DeepseekV4Attention` of transformers; `DSv4HybridSelfAttention` of Megatron-LM's later releases).

    All heads share one key, which is the value too.
    """

    ratio: int
    """Tokens that become one compressed key; 0 with the window alone."""
    q_rank: int
    out_groups: int
    """Groups of heads, each with its own projection to `out_rank` elements."""
    out_rank: int
    window: int
    index: Index | None
    """What selects compressed keys; without one, a query attends to all."""

    @property
    def overlap(self) -> int:
        """Projections of keys that a compressed one is made of: those of its own tokens and, where an
        indexer selects, of the tokens before them."""
        return 2 if self.index is not None else 1
