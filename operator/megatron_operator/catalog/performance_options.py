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

from megatron_operator.catalog.entry import LeftOut, MegatronArgs

BARE: Final = frozenset({"ep-overlap", "delay-wgrad", "tp-overlap", "fsdp", "offload"})
_LEFT_OUT: Final = {
    "fsdp": LeftOut(
        setting="sharding by FSDP", reason="whose checkpoints are in another format", less_memory=True
    ),
    "offload": LeftOut(
        setting="activations in host memory",
        reason="for which the planner has no estimate",
        less_memory=True,
    ),
}


@dataclass(slots=True)
class FastSettings:
    """Settings by section, in their wire form."""

    parallelism: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    megatron_args: dict[str, Any] = field(default_factory=dict)
    left_out: list[dict[str, Any]] = field(default_factory=list)
    """What is not used, in the wire form of `LeftOut`."""

    def leave_out(self, setting: str, reason: str, args: MegatronArgs) -> None:
        """Name a setting that is not used, with the arguments by which the planner can time it."""
        self.left_out.append(LeftOut(setting=setting, reason=reason, args=args).wire())


def settings(bare: list[str], options: dict[str, str], precision: str) -> FastSettings:
    """The settings of the options of one line; takes them from `options`."""
    found = FastSettings(left_out=[_LEFT_OUT[word].wire() for word in bare if word in _LEFT_OUT])
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
    backend = options.pop("flex", None)
    if backend:
        reason = f"whose package for {backend} the project's image lacks"
        found.leave_out("the dispatcher flex", reason, {"moe-flex-dispatcher-backend": backend})
    if "ep-overlap" in bare:
        args["overlap-moe-expert-parallel-comm"] = True
    if "delay-wgrad" in bare:
        args["delay-wgrad-compute"] = True
    if "tp-overlap" in bare:
        found.parallelism["tpCommOverlap"] = True
    graphs = options.pop("graphs", None)
    if graphs == "full_iteration" and backend:
        # Megatron's alltoall copies the experts' token counts to the host, which no graph can capture.
        reason = "which need the dispatcher flex"
        found.leave_out("CUDA graphs of whole iterations", reason, {"cuda-graph-impl": graphs})
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
