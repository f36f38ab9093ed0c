"""How far a measured speed may be from the estimate: `data/uncertainty.yaml`, by kind, precision and chips.

`bench.intervals` computes the file from the errors of published runs.
"""

import math
from functools import cache
from importlib import resources

import yaml

from megatron_operator.planner.estimate.hardware import Accelerator
from megatron_operator.planner.estimate.model_shape import ModelShape, distinct_kinds
from megatron_operator.planner.estimate.workload import Numerics, Workload

NINE_OF_TEN = 1.645
"""Standard deviations on each side of the mean within which 90 % of a normal distribution is."""
UNMEASURED = "unmeasured"
"""Key of the runs of a kind for which nothing was measured."""

_NEW_KERNELS = 2
"""How much wider the interval is, on a logarithmic scale, for attention that selects or compresses keys: its
kernels are new, and two published runs of DeepSeek-V4-Flash are 19 and 24 % slower than predicted."""

_GENERATIONS = {"blackwell-ultra": "blackwell"}


@cache
def table() -> dict[str, dict[str, float]]:
    """Factor, at least 1, for each kind of model (dense, moe, hybrid), precision and generation of chips."""
    text = resources.files("megatron_operator.planner").joinpath("data/uncertainty.yaml").read_text()
    loaded: dict[str, dict[str, float]] = yaml.load(
        text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    )
    return loaded


def spread(w: Workload, on: Accelerator) -> float:
    """Factor, at least 1, by which nine of ten measured runs like this one are at most slower or faster.

    Wider for attention that selects or compresses keys.
    """
    if w.shape.diffusion is not None:
        # No run of the kind was measured.
        return max(factors[UNMEASURED] for factors in table().values())
    kind, group = group_of(w, on)
    factors = table()[kind]
    factor = factors.get(group, factors[UNMEASURED])
    return factor**_NEW_KERNELS if any(each.sparse for each in distinct_kinds(w.shape)) else factor


def mean_error(factor: float) -> float:
    """Typical relative error, as a share, where nine of ten measurements are within `factor` of the estimate.

    Own derivation: the logarithms of the errors are taken to be normal, so their standard deviation is
    log(factor) / 1.645, and the mean of their absolute values is sqrt(2/pi) times that.
    """
    return math.expm1(math.sqrt(2 / math.pi) * math.log(factor) / NINE_OF_TEN)


def group_of(w: Workload, on: Accelerator) -> tuple[str, str]:
    """Kind of the model, and precision and generation of the chips: `moe`, `mxfp8 on blackwell`.

    The group of a model with parts that no measured run has, and of adapters, is that of what was not
    measured.
    """
    kind = "hybrid" if w.shape.mamba else "moe" if w.shape.is_moe else "dense"
    if w.adapters is not None or not _is_measured(w.shape):
        return kind, UNMEASURED
    return kind, f"{_precision(w.numerics)} on {_GENERATIONS.get(on.architecture, on.architecture)}"


def _is_measured(shape: ModelShape) -> bool:
    """Whether runs of models of such parts are in `bench/data/published.yaml`.

    No run has attention that selects or compresses keys, heads that differ by layer, a gated delta net, a
    gate on its attention, a GELU gate, norms behind its parts or over all heads, a vision tower, layers of
    different widths, or layers of Mamba-2 without experts.
    """
    if (shape.mamba and not shape.is_moe) or any(kind.attention for kind in distinct_kinds(shape)):
        return False
    if shape.has_special_layers or shape.qk_norm_of_all_heads:
        return False
    gated = shape.gate or shape.head_gate or shape.gelu_gate
    return not (shape.delta or gated or shape.post_norms or shape.towers)


def _precision(n: Numerics) -> str:
    if n.fp4:
        return "fp4"
    if n.fp8:
        return "mxfp8" if n.block_scaled else "fp8"
    return "fp32" if n.in_fp32 else "bf16"
