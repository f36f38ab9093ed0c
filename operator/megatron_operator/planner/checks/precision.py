"""Checks of precision, recomputation, optimizer and hyperparameters."""

from megatron_operator.api.errors import FieldError
from megatron_operator.api.training import ParallelismSpec, TrainingSpec
from megatron_operator.catalog.architecture import Architecture
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.checks.four_bits import four_bit_errors
from megatron_operator.planner.checks.lowest_rate import lowest_rate_errors
from megatron_operator.planner.estimate.hardware import Accelerator, with_block_scales
from megatron_operator.planner.estimate.model_shape import ModelShape


def precision_errors(resolved: ResolvedRecipe, accelerator: Accelerator | None) -> list[FieldError]:
    """Errors for precisions that exclude each other or that the accelerator does not support."""
    t, errors = resolved.training, _block_scaling_errors(resolved, accelerator)
    if t.bf16 and t.fp16:
        errors.append(FieldError("spec.training.fp16", "is set together with bf16", "set one of the two"))
    errors += four_bit_errors(resolved, accelerator)
    if t.fp8_format is None:
        fields = (
            ("fp8Recipe", t.fp8_recipe),
            ("fp8AmaxHistoryLen", t.fp8_amax_history_len),
            ("fp8AmaxComputeAlgo", t.fp8_amax_compute_algo),
            ("fp8ParamGather", t.fp8_param_gather or None),
        )
        errors += [
            FieldError(
                f"spec.training.{name}", "is set without fp8Format", "set fp8Format: hybrid, or leave it out"
            )
            for name, value in fields
            if value is not None
        ]
        return errors
    errors += _history_errors(resolved)
    if not t.bf16:
        errors.append(
            FieldError(
                "spec.training.fp8Format",
                f"{t.fp8_format} without bf16 would keep parameters in FP32",
                "set bf16: true",
            )
        )
    if resolved.profile.platform == "gpu" and accelerator is not None and accelerator.fp8 is None:
        errors.append(
            FieldError(
                "spec.training.fp8Format",
                f"{t.fp8_format}: {accelerator.name} does not support FP8 matrix products",
                "leave it out, or use Ada, Hopper or later",
            )
        )
    if t.transformer_impl == "local":
        errors.append(
            FieldError(
                "spec.training.transformerImpl",
                "local, but FP8 requires Transformer Engine",
                "set transformer_engine, or leave fp8Format out",
            )
        )
    return errors


def _history_errors(resolved: ResolvedRecipe) -> list[FieldError]:
    """Transformer Engine keeps a history of maxima for delayed scaling alone, which is Megatron's default.

    The catalog's history stays without effect where a recipe chooses another scaling.
    """
    t = resolved.training
    if t.fp8_recipe in (None, "delayed"):
        return []
    fields = (("fp8AmaxHistoryLen", t.fp8_amax_history_len), ("fp8AmaxComputeAlgo", t.fp8_amax_compute_algo))
    return [
        FieldError(
            f"spec.training.{name}",
            f"{value} has no effect with fp8Recipe {t.fp8_recipe}, which keeps no history",
            "leave it out, or set fp8Recipe: delayed",
        )
        for name, value in fields
        if value is not None and resolved.is_set_by_user(f"training.{name}")
    ]


def _block_scaling_errors(resolved: ResolvedRecipe, accelerator: Accelerator | None) -> list[FieldError]:
    """Errors for formats that tensor cores of an older architecture do not multiply.

    FP8 by blocks requires compute capability 9.0, MXFP8 that of Blackwell (`check_fp8_block_scaling_support`
    and others of Transformer Engine).
    """
    if accelerator is None or accelerator.architecture.startswith("blackwell"):
        return []
    errors, recipe = [], resolved.training.fp8_recipe
    on_ada = accelerator.architecture == "ada"
    if recipe == "mxfp8":
        errors.append(
            FieldError(
                "spec.training.fp8Recipe",
                f"mxfp8: {accelerator.name} does not support MXFP8 matrix products",
                f"set tensorwise{'' if on_ada else ' or blockwise'}, or use {with_block_scales(accelerator)}",
            )
        )
    if recipe == "blockwise" and on_ada:
        errors.append(
            FieldError(
                "spec.training.fp8Recipe",
                f"blockwise: {accelerator.name} does not support FP8 matrix products with scales of blocks",
                "set tensorwise, or use Hopper or later",
            )
        )
    return errors


def cheap_modules(shape: ModelShape, resolved: ResolvedRecipe) -> tuple[str, ...]:
    """Modules that are cheap to recompute selectively, as Megatron names them (`recompute_modules`).

    Norms, activations of experts, and up-projections from the latent space; empty for other models.
    """
    delayed = resolved.training.fp8_format is not None and resolved.training.fp8_recipe in (None, "delayed")
    modules = ("mla_up_proj",) if shape.latent is not None else ()
    if shape.is_moe and not delayed:
        modules += ("layernorm", *(("moe_act",) if resolved.model.moe_grouped_gemm else ()))
    return modules


def recompute_errors(p: ParallelismSpec, resolved: ResolvedRecipe) -> list[FieldError]:
    """Errors for recomputation settings that Megatron rejects together."""
    at = "spec.parallelism."
    modules = _module_errors(p, resolved) if p.recompute_modules else []
    return [*modules, *_full_errors(p, at), *_prediction_errors(p, resolved, at)]


_OF_EXPERTS = ("moe", "moe_act", "shared_experts")


def _module_errors(p: ParallelismSpec, resolved: ResolvedRecipe) -> list[FieldError]:
    """Errors for modules that Megatron does not recompute in this model."""
    modules, training, model = p.recompute_modules or [], resolved.training, resolved.model
    problems = []
    if p.recompute_granularity != "selective":
        problems.append(
            (f"is set with recomputeGranularity {p.recompute_granularity or 'none'}", "set it to selective")
        )
    # DeepSeek-V4's attention is a latent one of its own.
    compressed = isinstance(model, Architecture) and model.csa_compress_ratios is not None
    if "mla_up_proj" in modules and not (model.multi_latent_attention or compressed):
        problems.append(("mla_up_proj without multiLatentAttention", "leave it out"))
    if not model.num_experts and (of_experts := [each for each in modules if each in _OF_EXPERTS]):
        problems.append((f"{', '.join(of_experts)} without experts", "leave it out"))
    elif "shared_experts" in modules and not model.moe_shared_expert_intermediate_size:
        problems.append(("shared_experts without moeSharedExpertIntermediateSize", "leave it out"))
    elif "shared_experts" in modules and resolved.megatron_args.get("moe-shared-expert-overlap"):
        overlap = "megatronArgs.moe-shared-expert-overlap"
        problems.append((f"shared_experts with {overlap}: true", f"leave it or {overlap} out"))
    if "moe_act" in modules and model.num_experts and not model.moe_grouped_gemm:
        problems.append(("moe_act without moeGroupedGemm", "leave it out, or set moeGroupedGemm: true"))
    delayed = training.fp8_format is not None and training.fp8_recipe in (None, "delayed")
    if delayed and (stale := sorted({"moe_act", "layernorm"} & set(modules))):
        problems.append(
            (f"{stale[0]} with delayed FP8 scaling", "leave it out, or set training.fp8Recipe to another")
        )
    return [FieldError("spec.parallelism.recomputeModules", *problem) for problem in problems]


def _prediction_errors(p: ParallelismSpec, resolved: ResolvedRecipe, at: str) -> list[FieldError]:
    """Megatron recomputes layers of multi-token prediction one at a time (`multi_token_prediction.py`)."""
    layers = p.recompute_num_layers
    if p.recompute_method != "uniform" or not resolved.model.mtp_num_layers or layers in (None, 1):
        return []
    message = f"{layers} with recomputeMethod uniform and mtpNumLayers {resolved.model.mtp_num_layers}"
    return [FieldError(at + "recomputeNumLayers", message, "set 1")]


def _full_errors(p: ParallelismSpec, at: str) -> list[FieldError]:
    if p.recompute_granularity == "full":
        missing = [
            name
            for name, value in (
                ("recomputeMethod", p.recompute_method),
                ("recomputeNumLayers", p.recompute_num_layers),
            )
            if value is None
        ]
        fixes = {"recomputeMethod": "set uniform or block", "recomputeNumLayers": "set 1 or more"}
        return [
            FieldError(at + name, "is missing with recomputeGranularity full", fixes[name])
            for name in missing
        ]
    given = [
        name
        for name, value in (
            ("recomputeMethod", p.recompute_method),
            ("recomputeNumLayers", p.recompute_num_layers),
        )
        if value is not None
    ]
    asked = p.recompute_granularity or "none"
    return [
        FieldError(
            at + name,
            f"is set with recomputeGranularity {asked}",
            "set recomputeGranularity full, or leave it out",
        )
        for name in given
    ]


def optimizer_errors(
    p: ParallelismSpec, training: TrainingSpec, distributed_optimizer: bool
) -> list[FieldError]:
    """Errors for overlaps and for settings of the optimizer that require another setting."""
    at, errors = "spec.parallelism.", []
    sharded = {
        "usePrecisionAwareOptimizer": training.use_precision_aware_optimizer,
        "fp8ParamGather": training.fp8_param_gather,
    }
    errors += [
        FieldError(
            f"spec.training.{name}",
            "requires the distributed optimizer, which is off",
            f"set parallelism.useDistributedOptimizer: true, or {name}: false",
        )
        for name, is_on in sharded.items()
        if is_on and not distributed_optimizer
    ]
    if p.overlap_param_gather and not distributed_optimizer:
        errors.append(
            FieldError(
                at + "overlapParamGather",
                "requires the distributed optimizer, which is off",
                "set useDistributedOptimizer: true, or leave it out",
            )
        )
    if p.overlap_param_gather and p.overlap_grad_reduce is False:
        errors.append(
            FieldError(
                at + "overlapParamGather", "requires overlapGradReduce, which is false", "set both or neither"
            )
        )
    if p.tp_comm_overlap and p.sequence_parallel is False:
        errors.append(
            FieldError(
                at + "tpCommOverlap", "requires sequenceParallel, which is false", "set both or neither"
            )
        )
    return errors


_WITHOUT_PACKAGE = "Megatron's Muon needs the package emerging-optimizers, which the trainer image lacks"
_UNUSABLE_OPTIMIZERS = {
    # `init_state_fn` is None for it, and called at every load (megatron/core/optimizer).
    "sgd": "Megatron cannot shard its states, and cannot load a checkpoint of sgd to resume a run",
    "muon": _WITHOUT_PACKAGE,
    "dist_muon": _WITHOUT_PACKAGE,
}
"""Optimizers that Megatron's flag offers, and why a run with them does not start or does not resume."""


def training_errors(resolved: ResolvedRecipe) -> list[FieldError]:
    """Errors for hyperparameters that are missing or contradict each other."""
    t, errors = resolved.training, []
    for name, value in (("seqLength", t.seq_length), ("lr", t.lr)):
        if value is None:
            errors.append(
                FieldError(f"spec.training.{name}", "is missing", "set it, or name a recipe that has it")
            )
    in_bridges_own_image = resolved.engine == "bridge" and not resolved.starts
    if t.optimizer in _UNUSABLE_OPTIMIZERS and not in_bridges_own_image:
        errors.append(
            FieldError(
                "spec.training.optimizer",
                f"{t.optimizer}: {_UNUSABLE_OPTIMIZERS[t.optimizer]}",
                "set adam, or leave it out",
            )
        )
    if t.train_iters is None and t.train_samples is None:
        errors.append(
            FieldError(
                "spec.training.trainTokens",
                "the run's length is missing",
                "set one of trainTokens, trainIters and trainSamples",
            )
        )
    return errors + lowest_rate_errors(resolved)
