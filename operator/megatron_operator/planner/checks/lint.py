"""Lint rules: combinations that Megatron accepts on its command line and fails on later, or runs slowly.

Sources: `TransformerConfig.__post_init__` and `validate_args` of megatron-core 0.19.2, and the list "Common
Pitfalls" of Megatron-Bridge's recipe index.
"""

import math
from collections.abc import Iterator
from typing import Final

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import FieldError
from megatron_operator.api.labels import LABEL_CLIQUE
from megatron_operator.api.status import Plan
from megatron_operator.catalog import bridge_support
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.checks.context_sizes import level_errors
from megatron_operator.planner.checks.cuda_graphs import (
    captured_modules,
    graph_errors,
    recomputed_modules,
)
from megatron_operator.planner.checks.flag_requirements import EXPERT_OVERLAP, flag_errors
from megatron_operator.planner.checks.fsdp import fsdp_errors, fsdp_warnings, model_errors
from megatron_operator.planner.checks.probable_mistakes import FAST_WRITES, probable_mistakes
from megatron_operator.planner.durations import duration
from megatron_operator.planner.estimate import hardware
from megatron_operator.planner.estimate.checkpoint import checkpoint_bytes
from megatron_operator.planner.estimate.hardware import GIB
from megatron_operator.planner.estimate.model_shape import model_shape
from megatron_operator.planner.estimate.offloading import offloaded_bytes
from megatron_operator.planner.save_interval import save_interval
from megatron_operator.planner.search.enumerate import TOKENS_PER_CP_RANK, takes_more_virtual_stages
from megatron_operator.planner.search.problem import Candidate

_ARGS = "spec.megatronArgs."

LOW_MFU = 0.1
"""Model FLOPs utilization (MFU) below which a run wastes its accelerators."""

_LONGEST_LOSS = 3600.0
"""Seconds of training that a failure may repeat before more frequent checkpoints are proposed."""
_STEP_OF_FORWARDS = 3
"""Work of a step in forward passes: a backward pass is two."""
_LONG_EVALUATIONS = 0.1
"""Share of the time of training above which evaluations are named."""

_CONTEXT_SIZES: Final = {8: "2, 4 or 8", 4: "2 or 4", 2: "2"}
"""Sizes of CP to propose, by the largest that is possible."""


def lint_errors(resolved: ResolvedRecipe) -> list[FieldError]:
    """Errors for combinations with flags of `megatronArgs` that fail an assertion of Megatron."""
    args, errors = resolved.megatron_args, [*_local_errors(resolved), *_decay_errors(resolved)]
    if args.get("use-torch-fsdp2"):
        fully = "set parallelism.useMegatronFsdp, which shards as much"
        partly = "leave it out: useDistributedOptimizer shards the optimizer states"
        errors.append(
            FieldError(
                _ARGS + "use-torch-fsdp2",
                "is not taken: its optimizer states are in no checkpoint that was resumed here",
                partly if any(model_errors(resolved.model)) else fully,
            )
        )
    errors += [*graph_errors(resolved), *level_errors(resolved)]
    if args.get(EXPERT_OVERLAP):
        errors += _overlap_errors(resolved)
    errors += _offload_errors(resolved)
    return errors + flag_errors(resolved) + fsdp_errors(resolved)


def _offload_errors(resolved: ResolvedRecipe) -> list[FieldError]:
    """What Megatron requires of optimizer states on the host."""
    training, flag = resolved.training, "optimizer-cpu-offload"
    found = []
    if not resolved.megatron_args.get(flag):
        return []
    if not training.use_precision_aware_optimizer:
        found.append(
            ("requires the precision-aware optimizer", "set training.usePrecisionAwareOptimizer: true")
        )
    elif not (training.bf16 or training.fp16):
        # Megatron Core 0.19.2: a KeyError of HybridDeviceOptimizer, at the first resume.
        message = "Megatron cannot load the states of this optimizer for parameters in FP32"
        found.append((message, "set training.bf16: true, or leave it out"))
    if training.fp8_param_gather and training.fp8_recipe not in (None, "delayed"):
        message = f"takes fp8ParamGather with delayed scaling alone, and fp8Recipe is {training.fp8_recipe}"
        found.append((message, "set training.fp8ParamGather: false, or leave it out"))
    return [FieldError(_ARGS + flag, *each) for each in found]


def _local_errors(resolved: ResolvedRecipe) -> list[FieldError]:
    """Errors for checkpoints on node-local disks: all ranks read all files of a checkpoint."""
    local, every = resolved.checkpoint.local, resolved.checkpoint.save_interval
    found = []
    if local is not None and resolved.accelerator_count > resolved.per_node:
        pods = resolved.accelerator_count // resolved.per_node
        found.append(
            FieldError(
                "spec.checkpoint.local",
                f"the run has {pods} pods, and each would only see the files of its own node",
                "leave it out; on a shared fast volume set megatronArgs.non-persistent-ckpt-type: global",
            )
        )
    if local is not None and every is not None and local.save_interval >= every:
        found.append(
            FieldError(
                "spec.checkpoint.local.saveInterval",
                f"{local.save_interval} is not below checkpoint.saveInterval {every}",
                "set a smaller interval than for the volume, or leave local out",
            )
        )
    return found


def _overlap_errors(resolved: ResolvedRecipe) -> list[FieldError]:
    """What Megatron requires of overlapped expert communication, as far as the recipe sets it."""
    parallelism, model, training = resolved.parallelism, resolved.model, resolved.training
    pp, ep = parallelism.pipeline_model_parallel_size or 1, parallelism.expert_model_parallel_size
    virtual = parallelism.num_virtual_stages_per_pipeline_rank or parallelism.pipeline_model_parallel_layout
    found = []
    if not model.num_experts:
        found.append(("the model has no experts", "leave it out"))
    if ep == 1:
        found.append(("EP is 1, so there is nothing to overlap", "leave it out, or raise EP"))
    if pp > 1 and not virtual:
        found.append((f"PP {pp} without virtual stages", "set numVirtualStagesPerPipelineRank"))
    if parallelism.recompute_granularity == "full":
        found.append(("full recomputation", "set recomputeGranularity selective, or leave it out"))
    if "moe" in recomputed_modules(resolved):
        found.append(("recomputeModules has moe", "set others, for example moe_act"))
    if model.moe_token_dispatcher_type == "allgather":
        found.append(("moeTokenDispatcherType is allgather", "set model.moeTokenDispatcherType: alltoall"))
    if (model.mtp_num_layers or 0) > 1:
        found.append((f"mtpNumLayers is {model.mtp_num_layers}", "set model.mtpNumLayers: 1"))
    if not (training.bf16 or training.fp16):
        found.append(("the run is in FP32", "set training.bf16: true"))
    if resolved.megatron_args.get("moe-shared-expert-overlap"):
        found.append(("moe-shared-expert-overlap is set too", "set one of the two"))
    whole = captured_modules(resolved) & {"mlp", "moe"}
    if whole and resolved.megatron_args.get("cuda-graph-impl") == "transformer_engine":
        fix = "set others, for example attn and moe_router"
        found.append((f"cuda-graph-modules has {', '.join(sorted(whole))}", fix))
    return [FieldError(_ARGS + EXPERT_OVERLAP, f"is not supported here: {what}", fix) for what, fix in found]


def overlaps_experts(candidate: Candidate) -> bool:
    """Whether a layout supports overlapped expert communication."""
    dims, split = candidate.dims, candidate.layout.split
    interleaved = dims.pp == 1 or bool(split and split.virtual)
    return dims.ep > 1 and interleaved and candidate.recompute != "full"


def lint_warnings(resolved: ResolvedRecipe, plan: Plan) -> list[str]:
    """Warnings about settings that work, but are probably not intended."""
    notes, model = [], resolved.model
    if plan.pipeline_model_parallel_size > 1 and plan.expected is not None and plan.expected.bubble > 0.1:
        bubble = f"{plan.expected.bubble:.0%}"
        remedy = "globalBatchSize"
        if _takes_more_virtual_stages(resolved, plan):
            remedy += " or numVirtualStagesPerPipelineRank"
        notes.append(f"the pipeline bubble is {bubble} of a step: a larger {remedy} would help")
    groups = model.num_query_groups
    if groups and plan.tensor_model_parallel_size > groups and not model.multi_latent_attention:
        notes.append(
            f"TP {plan.tensor_model_parallel_size} is above numQueryGroups {groups}: keys and values are "
            "computed redundantly"
        )
    memory, length = plan.memory_per_gpu, resolved.training.seq_length or 0
    if memory and plan.context_parallel_size == 1 and length > 2 * TOKENS_PER_CP_RANK:
        share = memory.activations / memory.total
        remedy = _splitting(resolved, plan, length)
        notes.append(f"sequences of {length} on CP 1: activations are {share:.0%} of the memory{remedy}")
    generation = hardware.generation(resolved.accelerator_type, resolved.profile)
    overlaps = model.num_experts and resolved.megatron_args.get(EXPERT_OVERLAP)
    if overlaps and generation is hardware.Generation.HOPPER:
        notes.append(
            f"{EXPERT_OVERLAP} may cost more than it hides on Hopper, where most published presets leave it "
            "out: measure both"
        )
    if plan.expected is not None and plan.expected.mfu < LOW_MFU and plan.global_batch_size < plan.world_size:
        notes.append(
            f"{plan.expected.mfu:.1%} of the peak: globalBatchSize {plan.global_batch_size} is less than a "
            f"sample for each of {plan.world_size} accelerators; a larger one (lrScaling adjusts lr) or "
            "fewer accelerators would use them"
        )
    if model.num_experts and not model.moe_grouped_gemm and resolved.profile.platform == "gpu":
        notes.append("moeGroupedGemm is off: experts are computed one after the other")
    balanced = model.moe_aux_loss_coeff or model.moe_router_enable_expert_bias
    if model.num_experts and not balanced and resolved.engine == "megatron":
        notes.append(
            "nothing keeps the experts equally busy: moeAuxLossCoeff is 0 and there is no expert bias"
        )
    if offloaded := offloaded_bytes(resolved, plan):
        notes.append(
            f"optimizer-cpu-offload: each pod requests {offloaded / GIB:.1f} GiB more of its node's memory, "
            "for optimizer states and gradients; the estimated step has no time of the CPUs' update, nor of "
            "the copies to and from them"
        )
    notes += [*_short_hang_timeout(resolved, plan), *probable_mistakes(resolved, plan)]
    notes += [*fsdp_warnings(resolved, plan), *_left_out_states(resolved)]
    return notes + _no_node(resolved, plan) + _across_nodes(resolved, plan)


def _takes_more_virtual_stages(resolved: ResolvedRecipe, plan: Plan) -> bool:
    """Whether stages and micro batches of the plan suit more virtual stages."""
    model, pp = resolved.model, plan.pipeline_model_parallel_size
    function = resolved.function.function if resolved.engine == "bridge" and resolved.function else None
    whole = function is not None and not bridge_support.has_virtual_stages(function)
    if whole or model.heterogeneous_layers is not None or model.mamba_beside_attention:
        return False  # These are built without virtual stages.
    shape, present = model_shape(model, Diagnostics()), plan.virtual_pipeline_model_parallel_size or 1
    if shape is None or plan.gradient_accumulation % pp:
        return False
    return takes_more_virtual_stages(shape, resolved.parallelism, pp, present)


def _splitting(resolved: ResolvedRecipe, plan: Plan, length: int) -> str:
    """What splits the activations of long sequences, a clause of a note; empty where no ranks are left."""
    if plan.data_parallel_size == 1:
        return ""
    if plan.use_megatron_fsdp:
        return "; tensorModelParallelSize splits them; contextParallelSize needs useMegatronFsdp left out"
    if resolved.engine == "bridge" and not resolved.may_split_sequences:
        return "; tensorModelParallelSize splits them, contextParallelSize is not passed to Megatron-Bridge"
    # Twice CP divides the sequence.
    sizes = _CONTEXT_SIZES.get(math.gcd(16, 2 * plan.data_parallel_size, length) // 2)
    return f"; contextParallelSize {sizes} splits them" if sizes else ""


def _left_out_states(resolved: ResolvedRecipe) -> Iterator[str]:
    """Warnings about checkpoints from which no run resumes exactly."""
    training, checkpoint = resolved.training, resolved.checkpoint
    if checkpoint.no_save_optim and (training.bf16 or training.fp16):
        yield (
            "checkpoint.noSaveOptim: a resume starts with new moments of the optimizer and with weights"
            " rounded to 16 bits, so it does not repeat the losses of an undisturbed run"
        )
    elif checkpoint.no_save_optim:
        yield (
            "checkpoint.noSaveOptim: a resume starts with new moments of the optimizer, so it does not repeat"
            " the losses of an undisturbed run"
        )
    if checkpoint.no_save_rng:
        yield (
            "checkpoint.noSaveRng: a resume draws the random numbers of the run's start again, so with"
            " dropout it does not repeat the losses of an undisturbed run"
        )


def _decay_errors(resolved: ResolvedRecipe) -> list[FieldError]:
    """Adam divides by 1 less a power of its decays."""
    training = resolved.training
    decays = {"adamBeta1": training.adam_beta1, "adamBeta2": training.adam_beta2}
    return [
        FieldError(f"spec.training.{name}", "1 makes Adam divide by zero", "set less, for example 0.95")
        for name, value in decays.items()
        if value == 1
    ]


def suggestions(resolved: ResolvedRecipe, plan: Plan) -> list[str]:
    """Settings to try that would not fix a mistake."""
    return [*_smaller_formats(resolved), *_rarely_saved(resolved, plan), *_long_evaluations(resolved)]


def _smaller_formats(resolved: ResolvedRecipe) -> list[str]:
    training, fully_sharded = resolved.training, resolved.parallelism.use_megatron_fsdp
    is_lower = training.fp8_format is not None or training.fp4_format is not None
    takes = training.bf16 and training.transformer_impl != "local" and not fully_sharded
    if resolved.engine == "megatron" and takes and not is_lower and _has_fp8(resolved):
        return ["the accelerator supports FP8 matrix products: training.fp8Format hybrid would use them"]
    return []


def _rarely_saved(resolved: ResolvedRecipe, plan: Plan) -> list[str]:
    """A shorter interval where a failure would make the run repeat more than an hour."""
    every, length = resolved.checkpoint.save_interval, plan.train_iters
    if every is None or length is None or plan.expected is None or resolved.checkpoint.local is not None:
        return []
    step = plan.expected.step_seconds
    lost, shorter = min(every, length) * step, save_interval(step, length)
    if lost <= _LONGEST_LOSS or shorter >= every:
        return []
    rate = (checkpoint_bytes(resolved, plan) or 0) / GIB / (shorter * step)
    taken = f", for which the volume has to take {rate:.1f} GiB/s" if rate > FAST_WRITES else ""
    return [
        f"checkpoint.saveInterval {every}: a failure makes the run repeat up to {duration(lost)} of training;"
        f" {shorter} would save every {duration(shorter * step)}{taken}"
    ]


def _long_evaluations(resolved: ResolvedRecipe) -> list[str]:
    """Evaluations that take long beside the training between them."""
    training = resolved.training
    if not training.eval_iters or not training.eval_interval:
        return []
    share = training.eval_iters / _STEP_OF_FORWARDS / training.eval_interval
    if share <= _LONG_EVALUATIONS:
        return []
    return [
        f"evaluations take about {share:.0%} of the time of training, which is not part of the estimate:"
        f" training.evalIters {training.eval_iters:,} batches every evalInterval {training.eval_interval:,}"
    ]


def _short_hang_timeout(resolved: ResolvedRecipe, plan: Plan) -> list[str]:
    """A warning where sound steps may count as hangs: in less than twice their expected time."""
    timeout = resolved.recovery.hang_timeout
    if not timeout.endswith("s") or plan.expected is None:
        return []
    least = 2 * plan.expected.step_seconds
    if float(timeout[:-1]) >= least:
        return []
    return [
        f"recovery.hangTimeout {timeout}: a step is expected to take {least / 2:.1f} s, and one that takes"
        f" longer than the timeout counts as a hang; set auto, or {math.ceil(least)}s or more"
    ]


def _no_node(resolved: ResolvedRecipe, plan: Plan) -> list[str]:
    """A warning where pods have more accelerators than a node of the profile."""
    profile, name = resolved.profile, resolved.accelerator_type
    if profile.resource_name is None or plan.per_node <= profile.per_node:
        return []
    return [
        f"pods of {plan.per_node} find no node: by perNode of the platform's profile {name}, a node has "
        f"{profile.per_node} ({profile.resource_name})"
    ]


def _across_nodes(resolved: ResolvedRecipe, plan: Plan) -> list[str]:
    """Warnings about groups that should use NVLink but span nodes."""
    accelerator = hardware.of_profile(resolved.accelerator_type, resolved.profile, resolved.per_node)
    pod, notes = plan.per_node, []
    domain = hardware.nvlink_ranks(accelerator, pod)
    tp, ep = plan.tensor_model_parallel_size, plan.expert_model_parallel_size
    if tp > pod:
        notes.append(
            f"TP {tp} spans {tp // pod} pods: all pods are placed in one NVLink domain ({LABEL_CLIQUE}), "
            "which needs configured IMEX channels, otherwise NCCL uses the network"
        )
    overlaps = plan.sequence_parallel and resolved.parallelism.tp_comm_overlap
    if overlaps and accelerator is not None and not accelerator.overlaps_tensor_parallel(tp):
        links = f"has domains of {accelerator.domain}" if accelerator.nvlink else "has no NVLink"
        notes.append(
            f"tpCommOverlap needs TP groups within an NVLink domain: TP is {tp}, {accelerator.name} {links}"
        )
    span = ep * plan.expert_tensor_parallel_size if resolved.model.num_experts else 1
    if span > domain:
        what = "nodes" if domain == pod else "NVLink domains"
        notes.append(f"EP {ep} spans {what} of {domain}: tokens reach their experts over the network")
    elif span > pod:
        notes.append(
            f"EP {ep} spans nodes of {pod}: tokens reach their experts over NVLink within one domain, "
            f"which pod affinity prefers ({LABEL_CLIQUE})"
        )
    return notes


def _has_fp8(resolved: ResolvedRecipe) -> bool:
    accelerator = hardware.of_profile(resolved.accelerator_type, resolved.profile, resolved.per_node)
    return accelerator is not None and accelerator.fp8 is not None
