"""Several residual streams, mixed around each part of a layer: manifold-constrained hyper-connections.

Sizes and tensors are those of `HyperConnectionModule` (Megatron-LM's `hyper_connection.py`;
arXiv:2512.24880). With n streams of h elements, a part reads a weighted sum of them, and its output
is added to all of them with weights, after an n x n matrix mixed them. The weights are a projection of all
streams.
"""

from typing import Final

RECOMPUTED: Final = "mhc"
"""Module of selective recomputation that keeps neither streams nor their sum."""


def mapping_parameters(hidden: int, streams: int) -> int:
    """Parameters of one part's mapping: projection and bias of n sums, n outputs and the matrix, and a factor
    for each of the three. None with one stream."""
    if streams == 1:
        return 0
    weights = streams * (streams + 2)
    return weights * (streams * hidden + 1) + 3


def head_parameters(hidden: int, streams: int) -> int:
    """Parameters of what makes one stream of all behind the last layer: projection, bias and factor.

    `DeepseekV4HyperHead` of transformers, and `hc_head_*` of Megatron-Bridge.
    """
    return streams * (streams * hidden + 1) + 1 if streams > 1 else 0


def moved_bytes(hidden: int, streams: int) -> float:
    """Bytes moved per token in the forward pass of one part, beyond a residual's 6 h.

    Own derivation, with 2 bytes an element: the projection and the sum read all streams, the sum is written;
    the mixing reads all streams and the output and writes all streams, where one residual reads two tensors
    and writes one. None with one stream.
    """
    return (8 * streams + 4 - 6) * hidden if streams > 1 else 0.0


def kept_bytes(hidden: int, streams: int, modules: frozenset[str]) -> float:
    """Bytes per token that one part keeps beyond what it keeps with one stream: the streams and the part's
    output, of 2 bytes an element; with `mhc` recomputed the output instead of the sum."""
    if streams == 1 or RECOMPUTED in modules:
        return 0.0
    return 2.0 * (streams + 1) * hidden


def recomputed_bytes(hidden: int, streams: int, modules: frozenset[str]) -> float:
    """Bytes per token of the streams that one part has while they are recomputed, of one micro batch at a
    time: those of all layers of a stage at once (`mhc_recompute_layer_num` is not set)."""
    return 2.0 * streams * hidden if streams > 1 and RECOMPUTED in modules else 0.0
