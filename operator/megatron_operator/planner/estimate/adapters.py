"""Adapters of LoRA and DoRA on linear layers: their sizes and their products.

As `megatron.bridge.peft` of Megatron-Bridge 0.6.2 builds them: of a layer with `i` inputs and `o` outputs two
matrices, `dim x i` and `o x dim`, both split over the tensor-parallel group; DoRA adds `o` magnitudes. The
experts of a rank share one adapter (`share_expert_adapters`).
"""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Final

from megatron_operator.api.fine_tuning import TARGET_MODULES
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.estimate.layers import LayerKind, Mixer
from megatron_operator.planner.estimate.model_shape import ModelShape, ffn_of, gate_width, heads_of
from megatron_operator.planner.estimate.parameters import mtp_copies

_AFTER_NORM: Final = frozenset({"linear_qkv", "linear_fc1", "in_proj"})
"""Linear layers whose input is the output of a norm, which sequence parallelism splits over the TP group."""
_ROW_PARALLEL: Final = frozenset({"linear_proj", "linear_fc2", "out_proj"})
"""Linear layers whose inputs the tensor-parallel group splits, and of their adapters inputs and outputs."""
_LATENT: Final = frozenset(
    {
        "linear_q_proj",
        "linear_q_down_proj",
        "linear_q_up_proj",
        "linear_kv_down_proj",
        "linear_kv_up_proj",
        "linear_proj",
    }
)
_KNOWN: Final = _LATENT | {"linear_qkv", "linear_fc1", "linear_fc2", "in_proj", "out_proj"}


@dataclass(frozen=True, slots=True)
class AdaptedLayer:
    """A linear layer with an adapter; sizes in elements before any split."""

    name: str
    inputs: int
    outputs: int
    of_experts: bool = False
    """Whether it stands for all routed experts of a rank."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """What LoRA or DoRA adds to each layer. All other weights are frozen."""

    dim: int
    modules: frozenset[str]
    magnitudes: bool = False

    @classmethod
    def of(cls, resolved: ResolvedRecipe) -> "Adapters | None":
        """The adapters of a recipe of mode `lora`: its own, or those of its function.

        None for any other mode, and where rank or layers are not known.
        """
        peft, function = resolved.peft, resolved.function
        if resolved.mode != "lora":
            return None
        if peft is not None and peft.dim is not None:
            return cls(peft.dim, frozenset(peft.target_modules or ()), peft.type == "dora")
        if function is None or function.lora_rank is None:
            return None
        modules = frozenset(function.lora_targets or TARGET_MODULES)
        return cls(function.lora_rank, modules) if modules <= _KNOWN else None

    def layers(self, shape: ModelShape, kind: LayerKind) -> list[AdaptedLayer]:
        """The linear layers of a layer of this kind that have an adapter."""
        return [each for each in _linear_layers(shape, kind) if each.name in self.modules]

    def splits_rank(self, shape: ModelShape) -> bool:
        """Whether the tensor-parallel group splits `dim` itself.

        `ParallelLinearAdapter` has a ColumnParallelLinear of `dim` outputs for every layer that is not
        row-parallel, also where the layer itself is not split.
        """
        return any(
            not each.of_experts and each.name not in _ROW_PARALLEL
            for kind in {*shape.kinds, *shape.mtp_kinds}
            for each in self.layers(shape, kind)
        )

    def parameters_of_layer(self, shape: ModelShape, kind: LayerKind) -> tuple[int, int]:
        """Numbers of parameters that one layer trains, on all tensor-parallel ranks together: beside the
        experts, and for the experts of one rank."""
        beside = of_experts = 0
        for each in self.layers(shape, kind):
            trained = self.dim * (each.inputs + each.outputs) + (each.outputs if self.magnitudes else 0)
            if each.of_experts:
                of_experts += trained
            else:
                beside += trained
        return beside, of_experts

    def parameters(self, shape: ModelShape, ep: int) -> int:
        """Number of parameters that the whole model trains with `ep` expert-parallel ranks."""
        kinds = Counter((*shape.kinds, *(mtp_copies(shape) * shape.mtp_kinds)))
        each = {kind: self.parameters_of_layer(shape, kind) for kind in kinds}
        return sum(count * (each[kind][0] + ep * each[kind][1]) for kind, count in kinds.items())

    def kept_of_layer(self, shape: ModelShape, kind: LayerKind, tokens: float, tp: int) -> float:
        """Bytes that the adapters of one layer keep for the backward pass beside what the layer keeps.

        Own derivation, with 2 bytes an element for each of the rank's `tokens`, where `tp` is the size of the
        tensor-parallel group. The projection to `dim` elements and, above TP 1, the gathered input behind
        each norm, which the frozen layer itself does not need for gradients of weights. Each of a token's
        experts has one.
        """
        adapted = self.layers(shape, kind)
        gathered = sum(each.name in _AFTER_NORM and not each.of_experts for each in adapted) * shape.hidden
        routed = sum(each.of_experts for each in adapted) * shape.topk / tp
        plain = sum(not each.of_experts for each in adapted)
        return 2 * tokens * ((gathered if tp > 1 else 0) + (plain + routed) * self.dim)


def _linear_layers(shape: ModelShape, kind: LayerKind) -> list[AdaptedLayer]:
    h, first = shape.hidden, 2 if shape.gated else 1
    found = _mixer_layers(shape, kind)
    if kind.feed_forward == "dense":
        found += [
            AdaptedLayer("linear_fc1", h, first * ffn_of(shape, kind)),
            AdaptedLayer("linear_fc2", ffn_of(shape, kind), h),
        ]
    elif kind.feed_forward == "experts":
        routed, width = shape.expert_hidden, shape.expert_ffn
        found += [
            AdaptedLayer("linear_fc1", routed, first * width, of_experts=True),
            AdaptedLayer("linear_fc2", width, routed, of_experts=True),
        ]
        if shape.shared_ffn:
            found += [
                AdaptedLayer("linear_fc1", h, first * shape.shared_ffn),
                AdaptedLayer("linear_fc2", shape.shared_ffn, h),
            ]
    return found


def _mixer_layers(shape: ModelShape, kind: LayerKind) -> list[AdaptedLayer]:
    h, own = shape.hidden, heads_of(shape, kind)
    heads = own.heads * own.head_dim
    if kind.mixer is None:
        return []
    if kind.mixer == "parallel":
        both: tuple[Mixer, ...] = ("attention", "mamba")
        return [each for mixer in both for each in _mixer_layers(shape, replace(kind, mixer=mixer))]
    if kind.mixer == "mamba":
        m = shape.mamba
        assert m is not None, "only for models with Mamba-2 layers"
        return [AdaptedLayer("in_proj", h, m.projected), AdaptedLayer("out_proj", m.inner, h)]
    if kind.mixer == "delta":
        d = shape.delta
        assert d is not None, "only for models with gated delta nets"
        return [AdaptedLayer("in_proj", h, d.projected), AdaptedLayer("out_proj", d.values, h)]
    if shape.latent is None:
        projected = heads + gate_width(shape, own) + 2 * own.groups * own.head_dim
        return [AdaptedLayer("linear_qkv", h, projected), AdaptedLayer("linear_proj", heads, h)]
    a = shape.latent
    query = shape.heads * (a.qk_dim + a.rope_dim)
    found = [
        AdaptedLayer("linear_kv_down_proj", h, a.kv_rank + a.rope_dim),
        AdaptedLayer("linear_kv_up_proj", a.kv_rank, shape.heads * (a.qk_dim + a.v_dim)),
        AdaptedLayer("linear_proj", shape.heads * a.v_dim, h),
    ]
    if a.q_rank is None:
        return [*found, AdaptedLayer("linear_q_proj", h, query)]
    return [
        *found,
        AdaptedLayer("linear_q_down_proj", h, a.q_rank),
        AdaptedLayer("linear_q_up_proj", a.q_rank, query),
    ]
