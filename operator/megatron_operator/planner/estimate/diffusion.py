"""Parameters and FLOPs of diffusion transformers, as Megatron-Bridge 0.6.2 builds them.

FLUX (`megatron/bridge/diffusion/models/flux`): joint layers, in which latents and text have weights of their
own and attend to each other, then single layers over both, with attention beside the feed-forward part. Wan
(`.../models/wan`): each layer attends to the latents, then to the text. A shift, a scale and a gate follow
from the time step (adaptive layer norm); nothing is masked, and there is no vocabulary.
"""

from collections import Counter
from typing import TYPE_CHECKING, Final

from megatron_operator.planner.estimate.layers import LayerKind

if TYPE_CHECKING:
    from megatron_operator.planner.estimate.model_shape import ModelShape

UNUSED_SEQ_LENGTH: Final = 1024
"""`seq_length` of functions whose samples do not follow it (`FluxProvider`, `WanModelProvider`)."""
_CHUNKS: Final = {"joint": 12, "single": 3}
"""Vectors of the hidden size that a layer of FLUX projects from the time step."""


def sample_tokens(shape: "ModelShape", seq_length: int) -> int:
    """Tokens of a sequence that a micro batch has: those of a sample, with the text that is among them.

    Wan's samples have at most `seq_length` where that is set; FLUX does not read it.
    """
    d = shape.diffusion
    if d is None:
        return seq_length
    if d.joint:
        return d.latent_tokens + d.text_tokens
    return d.latent_tokens if seq_length == UNUSED_SEQ_LENGTH else seq_length


def layer_parameters(shape: "ModelShape", kind: LayerKind) -> tuple[int, int]:
    """Parameters of one layer: (split over TP, replicated).

    All linear layers have biases but the output of a single layer's attention (`FluxSingleAttention`).
    """
    h, f, d = shape.hidden, shape.ffn, shape.diffusion
    assert d is not None, "only for diffusion transformers"
    attention, feed_forward = (4 * h * h + 3 * h, h), (2 * h * f + f, h)
    if kind.mixer == "cross":
        split = attention[0] + 2 * h * h + 2 * d.text_hidden * h + 3 * h + feed_forward[0]
        # Norms of queries and keys across all heads, that in front of the text's attention, the modulation.
        return split, attention[1] + feed_forward[1] + h + 4 * h + 2 * h + 6 * h
    modulation, norms = _CHUNKS[str(kind.mixer)] * (h * h + h), 2 * shape.head_dim
    if kind.mixer == "single":
        return attention[0] + feed_forward[0] + modulation, feed_forward[1] + norms
    split = 2 * (attention[0] + feed_forward[0]) + modulation
    return split, 2 * (attention[1] + feed_forward[1] + norms)


def outside_parameters(shape: "ModelShape") -> int:
    """Parameters outside of the layers: embeddings of latents, text and time, and the output."""
    h, d = shape.hidden, shape.diffusion
    assert d is not None, "only for diffusion transformers"

    def embedder(inputs: int, width: int) -> int:
        return inputs * width + width + width * width + width

    latents = d.latent_channels * h + h
    output = h * d.latent_channels + d.latent_channels
    time = embedder(d.time_channels, h)
    if not d.joint:
        modulations = 6 * (h * h + h) + 2 * h
        return latents + output + time + modulations + embedder(d.text_channels, d.text_hidden)
    text = d.text_channels * h + h
    guidance = time if d.guidance else 0
    return latents + output + time + guidance + text + embedder(d.pooled_channels, h) + 2 * (h * h + h)


def flops_per_token(shape: "ModelShape", seq_length: int) -> int:
    """Operations of a token of a sequence of `seq_length`, forward and backward.

    That of Wan is `WanModelProvider._get_num_floating_point_operations_with_runtime_stats` for sequences of
    one sample; that of FLUX, for which Bridge has none, counts the same products.
    """
    h, f, s, d = shape.hidden, shape.ffn, seq_length, shape.diffusion
    assert d is not None, "only for diffusion transformers"
    own = 2 * h * 3 * h + 4 * s * h + 2 * h * h + 4 * h * f
    text = d.text_tokens / s
    across = 4 * h * h + text * 4 * d.text_hidden * h + 4 * d.text_tokens * h
    per_kind = {"joint": own, "single": own, "cross": own + across}
    layers = sum(count * per_kind[str(kind.mixer)] for kind, count in Counter(shape.kinds).items())
    ends = 4 * h * d.latent_channels
    if d.joint:
        outside = (1 - text) * ends + text * 2 * d.text_channels * h
    else:
        outside = ends + text * 2 * d.text_hidden * (d.text_channels + d.text_hidden)
    return round(3 * (layers + outside))
