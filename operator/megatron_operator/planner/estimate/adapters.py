"""Adapters of LoRA and DoRA on the linear layers of transformer layers: their sizes and their products.

Those of experts are not among them: Bridge gives the experts of a rank one adapter together.

As `megatron.bridge.peft` of Megatron-Bridge 0.6.2 builds them: of a layer with `i` inputs and `o` outputs two
matrices, `dim x i` and `o x dim`, both split over the tensor-parallel group; DoRA adds `o` magnitudes.
"""

from dataclasses import dataclass

from megatron_operator.api.fine_tuning import ATTENTION_MODULES, PeftSpec
from megatron_operator.planner.estimate.model_shape import ModelShape

_AFTER_NORM = frozenset({"linear_qkv", "linear_fc1"})
"""Linear layers whose input is the output of a norm, which sequence parallelism splits over the TP group."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """What LoRA or DoRA adds to each layer. All other weights are frozen."""

    dim: int
    modules: frozenset[str]
    magnitudes: bool = False

    @classmethod
    def of(cls, peft: PeftSpec | None, shape: ModelShape) -> "Adapters | None":
        """The adapters of a complete `peft`; None without, and for models with other linear layers."""
        if peft is None or peft.dim is None or not is_known(shape):
            return None
        modules = frozenset(peft.target_modules or ())
        if shape.is_moe and not modules <= ATTENTION_MODULES:
            return None
        return cls(peft.dim, modules, peft.type == "dora")

    def widths(self, shape: ModelShape) -> list[tuple[int, int]]:
        """Inputs and outputs, in elements, of each linear layer with an adapter, before the TP split."""
        h, heads = shape.hidden, shape.heads * shape.head_dim
        every = {
            "linear_qkv": (h, heads + 2 * shape.groups * shape.head_dim),
            "linear_proj": (heads, h),
            "linear_fc1": (h, (2 if shape.gated else 1) * shape.ffn),
            "linear_fc2": (shape.ffn, h),
        }
        return [width for name, width in every.items() if name in self.modules]

    def parameters_of_layer(self, shape: ModelShape) -> int:
        """Number of parameters that one transformer layer trains, on all tensor-parallel ranks together."""
        return sum(
            self.dim * (inputs + outputs) + (outputs if self.magnitudes else 0)
            for inputs, outputs in self.widths(shape)
        )

    def kept_of_layer(self, shape: ModelShape, tokens: float, tp: int) -> float:
        """Bytes that the adapters of one layer keep for the backward pass beside what the layer keeps.

        Own derivation, with 2 bytes an element for each of the rank's `tokens`, where `tp` is the size of the
        tensor-parallel group. The projection to `dim` elements and, above TP 1, the gathered input behind
        each norm, which the frozen layer itself does not need for gradients of weights.
        """
        gathered = len(self.modules & _AFTER_NORM) * shape.hidden if tp > 1 else 0
        return 2 * tokens * (gathered + len(self.modules) * self.dim)


def is_known(shape: ModelShape) -> bool:
    """Whether the linear layers of a model are those above: attention and feed-forward parts only, neither
    latent attention nor extra heads."""
    plain = shape.latent is None and not shape.mtp_layers and not shape.gate
    return plain and all(kind.mixer == "attention" and kind.feed_forward for kind in shape.kinds)
