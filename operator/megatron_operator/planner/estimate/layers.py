"""What the layers of a model consist of, and the sizes of mixers that are no softmax attention."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Literal

from megatron_operator.api.fine_tuning import ModelPart
from megatron_operator.planner.estimate.attention_kinds import Compressed, Heads, Indexed

Mixer = Literal["attention", "mamba", "parallel", "delta", "joint", "single", "cross"]
FeedForward = Literal["dense", "experts"]


@dataclass(frozen=True, slots=True)
class LayerKind:
    """The parts of one layer: a transformer layer has both, a layer of a hybrid model has one."""

    mixer: Mixer | None
    """Softmax attention (also latent), Mamba-2, both side by side behind one norm, a gated delta net, nothing
    that mixes tokens, or, in a diffusion transformer, joint attention of latents and text, attention over
    both, or over one after the other."""
    feed_forward: FeedForward | None
    attention: Heads | Indexed | Compressed | None = None
    """What the layer's attention has beyond that of the model's sizes."""
    ffn: int | None = None
    """Width of its dense feed-forward part, where it is not the model's."""

    @property
    def sparse(self) -> Indexed | Compressed | None:
        """Attention to keys that are selected or compressed; none for any other."""
        return None if isinstance(self.attention, Heads) else self.attention

    @property
    def is_moe(self) -> bool:
        """Whether the feed-forward part is a mixture of experts."""
        return self.feed_forward == "experts"

    @property
    def parts(self) -> int:
        """Number of parts, each with a norm in front of it and a residual around it."""
        return (self.mixer is not None) + (self.feed_forward is not None) + (self.mixer == "cross")

    @property
    def branches(self) -> int:
        """Number of parts where attention and a Mamba-2 mixer side by side count as two: each has linear
        layers of its own to and from the residual stream."""
        return self.parts + (self.mixer == "parallel")

    @property
    def softmax(self) -> bool:
        """Whether it has Megatron's `SelfAttention`, alone or beside a Mamba-2 mixer."""
        return self.mixer in ("attention", "parallel")

    @property
    def scans(self) -> bool:
        """Whether it has a Mamba-2 mixer or a gated delta net."""
        return self.mixer in ("mamba", "parallel", "delta")

    @property
    def is_diffusion(self) -> bool:
        """Whether it is a layer of a diffusion transformer."""
        return self.mixer in ("joint", "single", "cross")

    @property
    def attends(self) -> bool:
        """Whether softmax attention mixes the tokens."""
        return self.softmax or self.is_diffusion


DENSE: Final = LayerKind("attention", "dense")
EXPERTS: Final = LayerKind("attention", "experts")

_SYMBOLS: Final = {
    "M": LayerKind("mamba", None),
    "*": LayerKind("attention", None),
    "-": LayerKind(None, "dense"),
    "E": LayerKind(None, "experts"),
}


@dataclass(frozen=True, slots=True)
class Mamba:
    """Sizes of a Mamba-2 layer in elements (`megatron/core/ssm/mamba_mixer.py`)."""

    heads: int
    head_dim: int
    state: int
    """Size of the state of a channel."""
    groups: int
    """Groups of heads that share the matrices between channels and states."""
    norm: bool = True
    """Whether a gated norm follows the scan."""

    @property
    def inner(self) -> int:
        """Width of all heads."""
        return self.heads * self.head_dim

    @property
    def convolved(self) -> int:
        """Channels of the convolution: heads and both matrices of the state."""
        return self.inner + 2 * self.groups * self.state

    @property
    def projected(self) -> int:
        """Width of the input projection: gate, channels of the convolution, and a time step per head."""
        return self.inner + self.convolved + self.heads


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Sizes of a gated delta net in elements (`megatron/core/ssm/gated_delta_net`)."""

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int

    @property
    def keys(self) -> int:
        """Width of all keys, and of all queries."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Width of all values."""
        return self.value_heads * self.value_dim

    @property
    def convolved(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.keys + self.values

    @property
    def projected(self) -> int:
        """Width of the input projection: these, the gate, and two numbers per head of values."""
        return self.convolved + self.values + 2 * self.value_heads


@dataclass(frozen=True, slots=True)
class Tower:
    """An encoder of images or sound on the first pipeline stage; sizes in elements."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    groups: int
    """Heads of keys and values."""
    gated: bool
    conformer: bool
    """Whether its layers have a second feed-forward part and a convolution."""
    parameters: int
    """Of encoder and projector."""
    trained: int
    """Parameters that are trained without adapters; fewer than all where the encoder is frozen."""
    patches_per_token: int
    """Patches that become one token of the language model."""
    split: bool
    """Whether the tensor-parallel group splits it; else each rank has, and computes, all of it."""
    projector: int | None = None
    """Parameters of the projector alone, where they are known."""
    deepstack: int = 0
    """First layers of the language model that get its features as well."""
    share: float = 1.0
    """Share of the encoded tokens that come from it."""

    def freezes_encoder(self, frozen: Collection[ModelPart]) -> bool:
        """Whether the encoder is not trained by a run that freezes these parts."""
        return "vision" in frozen if frozen else self.trained < self.parameters

    def trained_without(self, frozen: Collection[ModelPart]) -> int:
        """Parameters that a run trains which freezes these parts; where the projector's number is not known,
        at most."""
        if not frozen:
            return self.trained
        if "vision" in frozen and "projector" in frozen:
            return 0
        projector = self.projector
        if projector is None:
            return self.parameters
        return projector if "vision" in frozen else self.parameters - projector * ("projector" in frozen)

    @property
    def projected(self) -> int:
        """Width of queries, keys and values."""
        return self.hidden + 2 * self.hidden * self.groups // self.heads


@dataclass(frozen=True, slots=True)
class Diffusion:
    """What a diffusion transformer has beside its layers; sizes in elements."""

    joint: bool
    """Whether latents and text attend to each other in one sequence; else latents attend to the text."""
    latent_channels: int
    text_channels: int
    text_tokens: int
    text_hidden: int
    """Width of the text to which the latents attend."""
    time_channels: int
    pooled_channels: int
    guidance: bool
    latent_tokens: int
    """Of a sample of the functions' random data."""


ENCODED: Final = 0.5
"""Share of the tokens that are taken to come from towers, from each as many: how many do depends on the
data."""
IMAGE_TOKENS: Final = 256
"""Tokens that are taken to come from one image, whose patches attend to each other."""
CONVOLUTION: Final = 4
"""Tokens that the convolution of both mixers covers (`d_conv`, `linear_conv_kernel_dim`)."""
CHUNK: Final = 128
"""Tokens of a chunk of Megatron's Mamba-2 kernel (`chunk_size`): products within chunks, states between."""
DELTA_CHUNK: Final = 64
"""Tokens of a chunk of the kernel of a gated delta net (flash-linear-attention, `chunk_gated_delta_rule`)."""


def hybrid_layers(pattern: str) -> tuple[tuple[LayerKind, ...], tuple[LayerKind, ...], int]:
    """Layers of `--hybrid-layer-pattern`, those of one multi-token prediction, and the number of these.

    Raises ValueError where the predictions differ, or for another symbol.
    """
    main, *predictions = pattern.split("/")
    if len(set(predictions)) > 1:
        raise ValueError("its multi-token predictions differ")
    if foreign := sorted(set(pattern) - _SYMBOLS.keys() - {"/"}):
        raise ValueError(f"{foreign[0]} is not one of {', '.join(_SYMBOLS)}")
    layers, prediction = (
        tuple(_SYMBOLS[symbol] for symbol in text) for text in (main, "".join(predictions[:1]))
    )
    return layers, prediction, len(predictions)


def diffusion_layers(joint: int | None, layers: int) -> tuple[LayerKind, ...]:
    """Layers of a diffusion transformer; the first `joint` have weights of their own for the text."""
    if joint is None:
        return (LayerKind("cross", "dense"),) * layers
    return (LayerKind("joint", "dense"),) * joint + (LayerKind("single", "dense"),) * (layers - joint)
