"""Options of the tables of functions that make a function fast.

    grads=bf16              gradients are reduced in BF16
    gather=fp8              the distributed optimizer gathers FP8 weights
    aware=G,M,V             precision-aware optimizer: formats of main gradients and both moments
    flex=BACKEND            dispatcher flex with this backend (deepep, hybridep), which is left out
    ep-overlap, delay-wgrad, tp-overlap
    graphs=IMPL[:MODULES]   CUDA graphs
    recompute=MODULES       selective; full:METHOD:LAYERS for whole layers
    fsdp, offload           not available here, and named in a note

The routing that benchmarks force to be even is not among them: it would change the model.
"""

from dataclasses import dataclass, field
from typing import Any, Final

BARE: Final = frozenset({"ep-overlap", "delay-wgrad", "tp-overlap", "fsdp", "offload"})
_LEFT_OUT: Final = {
    "fsdp": "sharding by FSDP, whose checkpoints are in another format",
    "offload": "activations in host memory, for which the planner has no estimate",
}


@dataclass(slots=True)
class FastSettings:
    """Settings by section, in their wire form."""

    parallelism: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    megatron_args: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    """What is not used, with the reason."""
    left_out_args: dict[str, Any] = field(default_factory=dict)
    """The arguments of it that the planner can time."""


def settings(bare: list[str], options: dict[str, str], precision: str) -> FastSettings:
    """The settings of the options of one line; takes them from `options`."""
    found = FastSettings(left_out=[_LEFT_OUT[word] for word in bare if word in _LEFT_OUT])
    args = found.megatron_args
    if precision == "nvfp4":
        args |= {"fp4-format": "e2m1", "fp4-recipe": "nvfp4"}
    if options.pop("grads", None) == "bf16":
        args["grad-reduce-in-bf16"] = True
    if options.pop("gather", None) == "fp8":
        found.training["fp8ParamGather"] = True
        if precision == "fp8mx":
            args["reuse-grad-buf-for-mxfp8-param-ag"] = True
    if formats := options.pop("aware", None):
        found.training["usePrecisionAwareOptimizer"] = True
        names = ("main-grads-dtype", "exp-avg-dtype", "exp-avg-sq-dtype")
        args |= {
            name: value for name, value in zip(names, formats.split(","), strict=True) if value != "fp32"
        }
    if backend := options.pop("flex", None):
        found.left_out.append(f"the dispatcher flex, whose package for {backend} the project's image lacks")
        found.left_out_args["moe-flex-dispatcher-backend"] = backend
    if "ep-overlap" in bare:
        args["overlap-moe-expert-parallel-comm"] = True
    if "delay-wgrad" in bare:
        args["delay-wgrad-compute"] = True
    if "tp-overlap" in bare:
        found.parallelism["tpCommOverlap"] = True
    graphs = options.pop("graphs", None)
    if graphs == "full_iteration" and found.left_out_args:
        # Megatron's alltoall copies the experts' token counts to the host, which no graph can capture.
        found.left_out.append("CUDA graphs of whole iterations, which need the dispatcher flex")
        found.left_out_args["cuda-graph-impl"] = graphs
    elif graphs:
        args |= _graphs(graphs)
    if recompute := options.pop("recompute", None):
        found.parallelism |= _recomputation(recompute)
    return found


def _graphs(text: str) -> dict[str, Any]:
    """Megatron requires Transformer Engine's random states for graphs; loss checks cannot be captured."""
    impl, _, modules = text.partition(":")
    args: dict[str, Any] = {"cuda-graph-impl": impl, "te-rng-tracker": True}
    if modules:
        args["cuda-graph-modules"] = modules.split(",")
    if impl == "full_iteration":
        args["no-check-for-nan-in-loss-and-grad"] = True
    return args


def _recomputation(text: str) -> dict[str, Any]:
    kind, _, rest = text.partition(":")
    if kind == "full":
        method, layers = rest.split(":")
        return {
            "recomputeGranularity": "full",
            "recomputeMethod": method,
            "recomputeNumLayers": int(layers),
        }
    return {"recomputeGranularity": "selective", "recomputeModules": kind.split(",")}
