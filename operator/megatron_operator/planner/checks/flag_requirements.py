"""Flags of `megatronArgs` that Megatron refuses without another setting.

Sources: `validate_args`, `TransformerConfig.__post_init__` and `OptimizerParamScheduler` of megatron-core
0.19.2. tests/megatron/test_flags_alone.py gives each flag by itself to both.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from megatron_operator.api.errors import FieldError
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.checks.context_sizes import context_size_errors
from megatron_operator.planner.checks.own_image import has_own_image
from megatron_operator.planner.checks.passthrough import why_not_taken
from megatron_operator.planner.estimate.workload import OFFLOAD_FRACTION, OPTIMIZER_INSTANCES
from megatron_operator.planner.gradient_overlap import overlaps

_AT: Final = "spec.megatronArgs."
EXPERT_OVERLAP: Final = "overlap-moe-expert-parallel-comm"
_OFFLOAD_VARIABLE: Final = "NVTE_CPU_OFFLOAD_V1"


class _Need(NamedTuple):
    """What some flags need: they have no error where `is_met`."""

    flags: str
    is_met: Callable[[ResolvedRecipe], bool]
    message: str
    fix: str
    harmless: tuple[object, ...] = ()
    """Values with which the flags need nothing: Megatron's defaults."""


def _has(flag: str) -> Callable[[ResolvedRecipe], bool]:
    return lambda resolved: resolved.megatron_args.get(flag, False) is not False


def _computes_in_8_bits(resolved: ResolvedRecipe) -> bool:
    return resolved.training.fp8_format is not None or resolved.training.fp4_format is not None


def _has_fused_bias(resolved: ResolvedRecipe) -> bool:
    if resolved.model.swiglu:
        return not _has("no-bias-swiglu-fusion")(resolved)
    return not (resolved.model.disable_bias_linear or _has("no-bias-gelu-fusion")(resolved))


def _may_offload(resolved: ResolvedRecipe) -> bool:
    """Whether Transformer Engine's variable may be 1: the recipe does not show all sources of variables."""
    value = resolved.env.get(_OFFLOAD_VARIABLE)
    if value is not None:
        return value == "1"
    of_source = _OFFLOAD_VARIABLE in resolved.env_value_from or bool(resolved.env_from)
    return of_source or has_own_image(resolved)


def _has_buffers_of_fixed_size(resolved: ResolvedRecipe) -> bool:
    backend = resolved.megatron_args.get("moe-flex-dispatcher-backend")
    fused = _has("use-transformer-engine-op-fuser")(resolved)
    return backend == "ncclep" or (backend == "hybridep" and fused)


def _interleaves(resolved: ResolvedRecipe) -> bool:
    p = resolved.parallelism
    return bool(p.num_virtual_stages_per_pipeline_rank or p.pipeline_model_parallel_layout)


_NEEDS: Final = (
    _Need(
        "exp-avg-dtype exp-avg-sq-dtype main-grads-dtype main-params-dtype",
        lambda resolved: bool(resolved.training.use_precision_aware_optimizer),
        "requires the precision-aware optimizer",
        "set training.usePrecisionAwareOptimizer: true, or fp32",
        ("fp32",),
    ),
    _Need(
        "attention-output-gate rotary-interleaved",
        lambda resolved: not resolved.model.multi_latent_attention,
        "excludes multi-latent attention",
        "leave it out",
    ),
    _Need(
        "delay-wgrad-compute ep-overlap-early-attn-memory-release",
        _has(EXPERT_OVERLAP),
        f"requires {EXPERT_OVERLAP}",
        f"set {EXPERT_OVERLAP}: true, or leave it out",
    ),
    _Need(
        "cuda-graph-impl",
        _has("no-check-for-nan-in-loss-and-grad"),
        "full_iteration captures no check of the loss",
        "set no-check-for-nan-in-loss-and-grad: true, or cuda-graph-impl transformer_engine",
        ("none", "local", "transformer_engine"),
    ),
    _Need(
        "batch-invariant-mode",
        lambda resolved: (
            resolved.training.attention_backend == "flash"
            and str(resolved.megatron_args.get("flash-attention-version")) in ("3", "4")
        ),
        "requires one FlashAttention kernel for training and inference",
        "set training.attentionBackend: flash and flash-attention-version: 3 or 4",
    ),
    _Need(
        "ddp-param-name-patterns-for-fp32-local-accumulation",
        _has("grad-reduce-in-bf16"),
        "has no effect where all gradients are summed in FP32",
        "set grad-reduce-in-bf16: true, or leave it out",
    ),
    _Need(
        "defer-embedding-wgrad-compute",
        lambda resolved: resolved.parallelism.pipeline_model_parallel_size != 1,
        "requires pipeline stages, and parallelism.pipelineModelParallelSize is 1",
        "set it above 1, or leave the flag out",
    ),
    _Need(
        "cpu-offloading-num-layers",
        lambda resolved: resolved.parallelism.pipeline_model_parallel_size in (None, 1),
        "excludes pipeline stages, and parallelism.pipelineModelParallelSize is not 1",
        "set it to 1, or leave the flag out",
        (0,),
    ),
    _Need(
        "distribute-saved-activations",
        lambda resolved: (
            resolved.parallelism.tensor_model_parallel_size != 1
            and resolved.parallelism.recompute_granularity in (None, "full")
        ),
        "requires tensor parallelism and full recomputation",
        "set parallelism.tensorModelParallelSize above 1 and recomputeGranularity: full",
    ),
    _Need(
        "fine-grained-activation-offloading",
        lambda resolved: _may_offload(resolved) and _has("offload-modules")(resolved),
        f"requires offload-modules, and {_OFFLOAD_VARIABLE} in the environment of Transformer Engine",
        f'set offload-modules, and env {{{_OFFLOAD_VARIABLE}: "1"}}',
    ),
    _Need(
        "first-last-layers-bf16",
        lambda resolved: (
            resolved.training.fp8_format is None or resolved.training.fp8_recipe not in (None, "delayed")
        ),
        "excludes delayed scaling, which is Megatron's default",
        "set training.fp8Recipe: tensorwise, or leave it out",
    ),
    _Need(
        "fp16-lm-cross-entropy",
        lambda resolved: bool(resolved.training.fp16),
        "requires training.fp16",
        "leave it out, or train in FP16",
    ),
    _Need(
        "fp32-residual-connection",
        lambda resolved: bool(resolved.training.bf16 or resolved.training.fp16),
        "requires training.bf16 or training.fp16",
        "leave it out: residuals are in FP32 already",
    ),
    _Need(
        "fp8-output-proj",
        lambda resolved: resolved.training.fp8_format is not None and resolved.training.fp8_recipe == "mxfp8",
        "requires matrix products in MXFP8",
        "set training.fp8Format: e4m3 and fp8Recipe: mxfp8, or leave it out",
    ),
    _Need(
        "moe-router-padding-for-fp8 moe-router-padding-for-quantization",
        _computes_in_8_bits,
        "requires FP8 or FP4 matrix products",
        "set training.fp8Format: hybrid, or leave it out",
    ),
    _Need(
        "reuse-grad-buf-for-mxfp8-param-ag",
        lambda resolved: bool(resolved.training.fp8_param_gather) and resolved.training.fp8_recipe == "mxfp8",
        "requires parameters that are gathered in MXFP8",
        "set training.fp8Recipe: mxfp8 and fp8ParamGather: true, or leave it out",
    ),
    _Need(
        "hybrid-context-parallel",
        lambda resolved: (
            resolved.parallelism.pipeline_model_parallel_size in (None, 1)
            and _has("calculate-per-token-loss")(resolved)
        ),
        "requires the loss per token, without pipeline stages",
        "set calculate-per-token-loss: true and parallelism.pipelineModelParallelSize: 1",
    ),
    _Need(
        "load-main-params-from-ckpt",
        _has("no-load-optim"),
        "requires no-load-optim",
        "leave it out: the optimizer's state is loaded with its parameters",
    ),
    _Need(
        "logits-save-dir",
        lambda resolved: bool(resolved.checkpoint.async_save) and _has("logits-save-top-k")(resolved),
        "requires logits-save-top-k and asynchronous checkpoints",
        "set both: logits-save-top-k and checkpoint.asyncSave: true",
    ),
    _Need(
        "mla-down-proj-fusion",
        lambda resolved: resolved.model.multi_latent_attention is True,
        "requires multi-latent attention",
        "leave it out, or set model.multiLatentAttention: true",
    ),
    _Need(
        "moe-enable-deepep",
        lambda resolved: resolved.model.moe_token_dispatcher_type == "flex",
        "requires the dispatcher flex",
        "set model.moeTokenDispatcherType: flex, or leave it out",
    ),
    _Need(
        "moe-flex-dispatcher-backend",
        lambda resolved: resolved.model.moe_token_dispatcher_type == "flex",
        "requires the dispatcher flex",
        "set model.moeTokenDispatcherType: flex, or leave it out",
        ("deepep", "hybridep"),
    ),
    _Need(
        "moe-expert-rank-capacity-factor",
        _has_buffers_of_fixed_size,
        "requires a dispatcher with buffers of a fixed size",
        "set moe-flex-dispatcher-backend: hybridep and use-transformer-engine-op-fuser: true, or leave it"
        " out",
    ),
    _Need(
        "moe-pad-expert-input-to-capacity",
        _has("moe-expert-capacity-factor"),
        "requires moe-expert-capacity-factor",
        "set moe-expert-capacity-factor, or leave it out",
    ),
    _Need(
        "moe-paged-stash",
        _has("moe-expert-rank-capacity-factor"),
        "requires moe-expert-rank-capacity-factor",
        "set moe-expert-rank-capacity-factor, or leave it out",
    ),
    _Need(
        "moe-single-grouped-bias",
        lambda resolved: bool(resolved.model.moe_grouped_gemm) and not resolved.model.disable_bias_linear,
        "requires grouped products of experts with biases",
        "set model.moeGroupedGemm: true and model.disableBiasLinear: false, or leave it out",
    ),
    _Need(
        "moe-single-grouped-weight",
        lambda resolved: (
            bool(resolved.model.moe_grouped_gemm) and _has("use-transformer-engine-op-fuser")(resolved)
        ),
        "requires grouped products of the experts in Transformer Engine's fused operations",
        "set model.moeGroupedGemm: true and use-transformer-engine-op-fuser: true, or leave it out",
    ),
    _Need(
        OPTIMIZER_INSTANCES,
        lambda resolved: resolved.parallelism.use_distributed_optimizer is not False,
        "requires the distributed optimizer, which is off",
        "set parallelism.useDistributedOptimizer: true, or leave it out",
        (1,),
    ),
    _Need(
        "overlap-p2p-communication-warmup-flush",
        _interleaves,
        "requires virtual pipeline stages",
        "set parallelism.numVirtualStagesPerPipelineRank, or leave it out",
    ),
    _Need(
        "save-params-interval",
        lambda resolved: not overlaps(resolved)[1],
        "excludes the overlap of parameter gathering",
        "set parallelism.overlapParamGather: false, or leave it out",
    ),
    _Need(
        "use-te-activation-func",
        lambda resolved: not _has_fused_bias(resolved),
        "excludes Megatron's fusion of bias and activation",
        "set no-bias-swiglu-fusion: true (no-bias-gelu-fusion without swiglu), or leave it out",
    ),
)


def flag_errors(resolved: ResolvedRecipe) -> list[FieldError]:
    """Errors for flags of `megatronArgs` without the settings that they need in Megatron's own loop."""
    if resolved.engine != "megatron":
        return []
    args, own = resolved.megatron_args, has_own_image(resolved)
    found = [
        FieldError(_AT + flag, need.message, need.fix)
        for need in _NEEDS
        for flag in need.flags.split()
        if args.get(flag, False) is not False and args[flag] not in need.harmless
        if not need.is_met(resolved) and not why_not_taken(flag, own_image=own)
    ]
    return [
        *found,
        *_of_dense_models(resolved, {error.field for error in found}),
        *_of_other_precisions(resolved),
        *_weight_decay_errors(resolved),
        *context_size_errors(resolved),
        *_interval_errors(resolved),
        *_attention_errors(resolved),
        *_rate_errors(resolved),
        *_offload_errors(resolved),
    ]


def _of_dense_models(resolved: ResolvedRecipe, reported: set[str]) -> Iterator[FieldError]:
    """Flags of experts, of which Megatron ignores most in a model that has none."""
    if resolved.model.num_experts:
        return
    for flag, value in resolved.megatron_args.items():
        is_own = resolved.is_set_by_user(f"megatronArgs.{flag}")
        if flag.startswith("moe-") and value is not False and is_own and _AT + flag not in reported:
            message = f"{str(value).lower()} has no effect: the model has no experts"
            yield FieldError(_AT + flag, message, "leave it out, or set model.numExperts")


def _of_other_precisions(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    """Megatron reads the flag with BF16 alone (`validate_args`)."""
    flag = "grad-reduce-in-bf16"
    is_own = resolved.is_set_by_user(f"megatronArgs.{flag}")
    if is_own and resolved.megatron_args.get(flag, False) is not False and not resolved.training.bf16:
        yield FieldError(_AT + flag, "has no effect without training.bf16", "leave it out")


def _weight_decay_errors(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    """A weight decay that grows needs both ends instead of a constant, which has none (`validate_args`)."""
    args = resolved.megatron_args
    style = args.get("weight-decay-incr-style", "constant")
    ends = [flag for flag in ("start-weight-decay", "end-weight-decay") if flag in args]
    if style == "constant":
        for flag in ends:
            message = f"{args[flag]} is set without weight-decay-incr-style"
            fix = "set training.weightDecay for a constant one, or weight-decay-incr-style: linear"
            yield FieldError(_AT + flag, message, fix)
    elif len(ends) < 2:
        message = f"{style} requires start-weight-decay and end-weight-decay"
        yield FieldError(_AT + "weight-decay-incr-style", message, "set both, or leave it out")
    constant = resolved.training.weight_decay
    if style != "constant" and constant is not None and resolved.is_set_by_user("training.weightDecay"):
        message = f"{constant:g} has no effect with megatronArgs.weight-decay-incr-style {style}"
        fix = "leave it out, or the style and both ends of its weight decay"
        yield FieldError("spec.training.weightDecay", message, fix)


def _interval_errors(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    """Intervals that have to be multiples of others (`validate_args`)."""
    intervals = (
        ("log-memory-interval", "training.logInterval", resolved.training.log_interval),
        ("save-retain-interval", "checkpoint.saveInterval", resolved.checkpoint.save_interval),
    )
    for flag, field, unit in intervals:
        value = resolved.megatron_args.get(flag)
        if isinstance(value, int) and unit and value % unit:
            message = f"{value} is not a multiple of {field} {unit}"
            yield FieldError(_AT + flag, message, f"set a multiple of {unit}")
    if "save-retain-interval" in resolved.megatron_args and resolved.checkpoint.keep_best:
        # Megatron deletes each other checkpoint once the next one is saved.
        message = "deletes the best checkpoint, which checkpoint.keepBest or export.when keeps"
        yield FieldError(_AT + "save-retain-interval", message, "leave it out, and set checkpoint.keep")


def _attention_errors(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    """What Megatron's attention variants need (`TransformerConfig.__post_init__`)."""
    flag, model = "experimental-attention-variant", resolved.model
    match resolved.megatron_args.get(flag):
        case "gated_delta_net" if not _has("linear-attention-freq")(resolved):
            yield FieldError(
                _AT + flag, "gated_delta_net requires linear-attention-freq", "set linear-attention-freq"
            )
        case "dsa" if not (model.multi_latent_attention and model.no_rope_fusion):
            message = "dsa requires multi-latent attention without the fusion of RoPE"
            fix = "set model.multiLatentAttention: true and model.noRopeFusion: true, or leave it out"
            yield FieldError(_AT + flag, message, fix)


def _rate_errors(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    """Flags of the learning rate's schedule (`OptimizerParamScheduler`)."""
    args, training = resolved.megatron_args, resolved.training
    first = args.get("lr-warmup-init")
    if isinstance(first, int | float) and training.lr is not None and first > training.lr:
        message = f"{first} is above training.lr {training.lr:g}"
        yield FieldError(_AT + "lr-warmup-init", message, f"set at most {training.lr:g}")
    unit, other = ("samples", "iters") if training.train_samples is not None else ("iters", "samples")
    if training.lr_decay_style == "WSD":
        if f"lr-wsd-decay-{unit}" not in args:
            message = "WSD decays at the end of the run, and the length of that decay is not set"
            fix = f"set megatronArgs.lr-wsd-decay-{unit}, or another style"
            yield FieldError("spec.training.lrDecayStyle", message, fix)
        useless, reason = [f"lr-wsd-decay-{other}"], f"has no effect: the run's length is in {unit}"
        fix = f"set lr-wsd-decay-{unit}"
    else:
        useless = ["lr-wsd-decay-iters", "lr-wsd-decay-samples", "lr-wsd-decay-style"]
        reason, fix = "has no effect without lrDecayStyle WSD", "set training.lrDecayStyle: WSD"
    for flag in useless:
        if flag in args:
            yield FieldError(_AT + flag, f"{args[flag]} {reason}", f"{fix}, or leave it out")


def _offload_errors(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    fraction = resolved.megatron_args.get(OFFLOAD_FRACTION, 1.0)
    with contextlib.suppress(ValueError):  # Another type is refused as such.
        if not 0 <= float(str(fraction)) <= 1:
            message = f"{fraction} is not a fraction"
            yield FieldError(_AT + OFFLOAD_FRACTION, message, "set a number from 0 to 1")
