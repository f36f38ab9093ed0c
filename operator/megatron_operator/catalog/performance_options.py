"""Options of the tables of functions that make a function fast.

    grads=bf16              gradients are reduced in BF16
    gather=fp8|fp4          the distributed optimizer gathers FP8 or FP4 weights
    aware=G,M,V             precision-aware optimizer: formats of main gradients and both moments
    flex=BACKEND            dispatcher flex with this backend (deepep, hybridep, ncclep)
    sms=N[,M]               multiprocessors of that dispatcher, and of its preprocessing
    budget=F, stash=C,H     buffers of a fixed size for the experts: tokens of a rank relative to even
                            routing, and sizes of the stash of their activations on the GPU and the host
    fuser=N                 Transformer Engine's operation fuser, with gates in blocks of N (0: no gates)
    ep-overlap, delay-wgrad, a2a-stream, tp-overlap, router-padding, fp8-output, mla-fusion
    graphs=IMPL[:MODULES]   CUDA graphs
    dsa=BACKEND             kernels of sparse attention (cudnn)
    recompute=MODULES       selective; full:METHOD:LAYERS for whole layers
    fsdp, offload, fp8-attention, qkv-rope, tp-buffers, nccl-ub
                            not available here, and named in a note

What belongs to the dispatcher flex is used where the image has its backend, and otherwise named in a note.
The routing that benchmarks force to be even is not among them: it would change the model.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from megatron_operator.catalog.entry import LeftOut, MegatronArgs

_LEFT_OUT: Final = {
    "fsdp": LeftOut(
        setting="sharding by FSDP", reason="whose checkpoints are in another format", less_memory=True
    ),
    "offload": LeftOut(
        setting="activations in host memory",
        reason="for which the planner has no estimate",
        less_memory=True,
    ),
    "fp8-attention": LeftOut(setting="attention in FP8", reason="for which Megatron's parser has no flag"),
    "qkv-rope": LeftOut(
        setting="rotation of queries and keys in one kernel",
        reason="for which Megatron's parser has no flag",
    ),
    "tp-buffers": LeftOut(
        setting="the sizes of the tensor-parallel overlap's buffers",
        reason="which Megatron reads from a file; Transformer Engine's own are used",
    ),
    "nccl-ub": LeftOut(
        setting="NCCL's user buffers",
        reason="whose allocator Megatron compiles when it starts, for which the project's image has no tools",
    ),
}
_SWITCHES: Final = {
    "ep-overlap": "overlap-moe-expert-parallel-comm",
    "delay-wgrad": "delay-wgrad-compute",
    "a2a-stream": "high-priority-a2a-comm-stream",
    "router-padding": "moe-router-padding-for-quantization",
    "fp8-output": "fp8-output-proj",
    "mla-fusion": "mla-down-proj-fusion",
}
"""Options that are one switch of Megatron."""
_OF_LATER_RELEASES: Final = frozenset({"mhc"})
"""Modules of selective recomputation that the image's Megatron lacks: residual streams (DeepSeek-V4)."""
_BEFORE_THE_EXCHANGE: Final = "transformer_engine:moe_router,moe_preprocess"
"""Graphs that the dispatcher alltoall allows; with those of attention Megatron refuses biases."""
BARE: Final = frozenset({"tp-overlap", *_LEFT_OUT, *_SWITCHES})


@dataclass(slots=True)
class FastSettings:
    """Settings by section, in their wire form."""

    parallelism: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    megatron_args: dict[str, Any] = field(default_factory=dict)
    left_out: list[dict[str, Any]] = field(default_factory=list)
    """What is not used, in the wire form of `LeftOut`."""

    def leave_out(self, setting: str, reason: str, needs: str, args: MegatronArgs) -> None:
        """Name a setting that only images with the package `needs` can use, with its arguments."""
        self.left_out.append(LeftOut(setting=setting, reason=reason, needs=needs, args=args).wire())


def settings(bare: list[str], options: dict[str, str], precision: str) -> FastSettings:
    """The settings of the options of one line; takes them from `options`."""
    found = FastSettings(left_out=[_LEFT_OUT[word].wire() for word in bare if word in _LEFT_OUT])
    args = found.megatron_args
    if options.pop("grads", None) == "bf16":
        args["grad-reduce-in-bf16"] = True
    _gathered(found, options.pop("gather", None), precision)
    if formats := options.pop("aware", None):
        found.training["usePrecisionAwareOptimizer"] = True
        names = ("main-grads-dtype", "exp-avg-dtype", "exp-avg-sq-dtype")
        args |= {
            name: value for name, value in zip(names, formats.split(","), strict=True) if value != "fp32"
        }
    args |= {flag: True for word, flag in _SWITCHES.items() if word in bare}
    if "tp-overlap" in bare:
        found.parallelism["tpCommOverlap"] = True
    if block := options.pop("fuser", None):
        args["use-transformer-engine-op-fuser"] = True
        if int(block):
            args["moe-mlp-glu-interleave-size"] = int(block)
    backend, graphs = options.pop("flex", None), options.pop("graphs", None)
    if backend:
        _flex(found, backend, options)
    if backend and graphs == "full_iteration":
        # Megatron's alltoall copies the experts' token counts to the host, which no graph can capture.
        # Bridge's functions with alltoall have graphs of what comes before; padding excludes them.
        padded = "router-padding" in bare
        reason = "which need the dispatcher flex" + (
            "" if padded else ", so that graphs are of parts of a layer"
        )
        found.leave_out("CUDA graphs of whole iterations", reason, backend, _graphs(graphs))
        args |= {} if padded else _graphs(_BEFORE_THE_EXCHANGE)
    elif graphs:
        args |= _graphs(graphs)
    if backend := options.pop("dsa", None):
        args["dsa-kernel-backend"] = backend
    if recompute := options.pop("recompute", None):
        found.parallelism |= _recomputation(recompute)
        if _OF_LATER_RELEASES & {*recompute.split(",")}:
            args["recompute-modules"] = recompute.split(",")
    return found


def drop_other_graphs(args: dict[str, Any], origins: dict[str, str]) -> None:
    """Remove the catalog's graph modules where the recipe chooses graphs that have none.

    `origins` is where each value came from, by its path.
    """
    path = "megatronArgs.cuda-graph-modules"
    if args.get("cuda-graph-impl") in ("none", "full_iteration") and origins.get(path) != "recipe":
        args.pop("cuda-graph-modules", None)
        origins.pop(path, None)


def _gathered(found: FastSettings, number: str | None, precision: str) -> None:
    """Weights that are gathered in FP8 or FP4; MXFP8's are in the buffer of the gradients."""
    if number == "fp4":
        found.training["fp4ParamGather"] = True
    elif number == "fp8":
        found.training["fp8ParamGather"] = True
        if precision == "fp8mx":
            found.megatron_args["reuse-grad-buf-for-mxfp8-param-ag"] = True


def _flex(found: FastSettings, backend: str, options: dict[str, str]) -> None:
    """The dispatcher flex, and the buffers that only it has."""
    args: MegatronArgs = {"moe-flex-dispatcher-backend": backend}
    if sms := options.pop("sms", None):
        dispatch, _, preprocessing = sms.partition(",")
        args["moe-flex-dispatcher-num-sms"] = int(dispatch)
        if preprocessing:
            args["moe-hybridep-num-sms-preprocessing"] = int(preprocessing)
    found.leave_out("the dispatcher flex", f"whose package for {backend} the image lacks", backend, args)
    if budget := options.pop("budget", None):
        # What exceeds the buffers is computed again without them: `PagedStashRunner` drops no token.
        fixed: MegatronArgs = {"moe-expert-rank-capacity-factor": float(budget)}
        if stash := options.pop("stash", None):
            on_gpu, on_host = map(float, stash.split(","))
            fixed |= {
                "moe-paged-stash": True,
                "moe-paged-stash-buffer-size-factor-cuda": on_gpu,
                "moe-paged-stash-buffer-size-factor-cpu": on_host,
            }
        reason = "which need the dispatcher flex"
        found.leave_out("buffers of a fixed size for the experts", reason, backend, fixed)


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
    modules = [module for module in kind.split(",") if module not in _OF_LATER_RELEASES]
    return {"recomputeGranularity": "selective", "recomputeModules": modules}
