"""Combinations that Megatron accepts on its command line and fails on later, and some that are only slow.

Sources: `TransformerConfig.__post_init__` and `validate_args` of megatron-core 0.19.2, and the list "Common
Pitfalls" of Megatron-Bridge's recipe index.
"""

from megatron_operator.api.errors import FieldError
from megatron_operator.api.names import LABEL_CLIQUE
from megatron_operator.api.status import Plan
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner import accelerators

_ARGS = "spec.megatronArgs."

LOW_USE = 0.1
"""Part of the peak below which a run is hardly worth its accelerators."""


def pitfall_errors(resolved: ResolvedRecipe) -> list[FieldError]:
    """Combinations with flags of `megatronArgs` that end in an assertion of Megatron."""
    args, errors = resolved.megatron_args, []
    for flag in ("use-megatron-fsdp", "use-torch-fsdp2"):
        if args.get(flag):
            errors.append(
                FieldError(
                    _ARGS + flag,
                    "needs a checkpoint format of its own, and the operator's checkpoints are torch_dist",
                    "leave it out: useDistributedOptimizer splits the optimizer's states",
                )
            )
    graphs = args.get("cuda-graph-impl", "none")
    if graphs in ("local", "transformer_engine") and resolved.parallelism.recompute_granularity == "full":
        errors.append(
            FieldError(
                _ARGS + "cuda-graph-impl",
                f"{graphs} with recomputeGranularity full, which goes with whole-iteration graphs only",
                "set full_iteration, or recomputeGranularity selective",
            )
        )
    if args.get("optimizer-cpu-offload") and not resolved.training.use_precision_aware_optimizer:
        errors.append(
            FieldError(
                _ARGS + "optimizer-cpu-offload",
                "needs the precision-aware optimizer",
                "set training.usePrecisionAwareOptimizer: true",
            )
        )
    return errors


def pitfall_notes(resolved: ResolvedRecipe, plan: Plan) -> list[str]:
    """What works, but is probably not what is wanted."""
    notes, model = [], resolved.model
    if plan.pipeline_model_parallel_size > 1 and plan.expected is not None and plan.expected.bubble > 0.1:
        notes.append(
            f"stages wait {plan.expected.bubble:.0%} of a step: a larger globalBatchSize or "
            "numVirtualStagesPerPipelineRank would help"
        )
    if plan.expected is not None and plan.expected.mfu < LOW_USE and plan.global_batch_size < plan.world_size:
        notes.append(
            f"{plan.expected.mfu:.1%} of the peak: globalBatchSize {plan.global_batch_size} is less than a "
            f"sample for each of {plan.world_size} accelerators; a larger one (lrScaling adjusts lr) or "
            "fewer accelerators would use them"
        )
    if model.num_experts and not model.moe_grouped_gemm and resolved.profile.platform == "gpu":
        notes.append("moeGroupedGemm is off: experts are computed one after the other")
    if model.num_experts and not model.moe_aux_loss_coeff and not model.moe_router_enable_expert_bias:
        notes.append(
            "nothing keeps the experts equally busy: moeAuxLossCoeff is 0 and there is no expert bias"
        )
    notes += _across_nodes(resolved, plan)
    if resolved.training.fp8_format is None and _has_fp8(resolved):
        notes.append("the accelerator has FP8 matrix products: training.fp8Format hybrid would use them")
    return notes


def _across_nodes(resolved: ResolvedRecipe, plan: Plan) -> list[str]:
    """Groups that should talk over NVLink and leave a node."""
    accelerator = accelerators.of_profile(resolved.accelerator_type, resolved.profile)
    pod, notes = plan.per_node, []
    domain = accelerators.joined(accelerator, pod)
    tp, ep = plan.tensor_model_parallel_size, plan.expert_model_parallel_size
    if tp > pod:
        notes.append(
            f"TP {tp} spans {tp // pod} pods: all pods are held in one NVLink domain ({LABEL_CLIQUE}), which "
            "has to have its IMEX channels set up, else NCCL takes the network"
        )
    span = ep * plan.expert_tensor_parallel_size if resolved.model.num_experts else 1
    if span > domain:
        what = "nodes" if domain == pod else "NVLink domains"
        notes.append(f"EP {ep} spans {what} of {domain}: tokens reach their experts over the network")
    elif span > pod:
        notes.append(
            f"EP {ep} spans nodes of {pod}: tokens reach their experts over NVLink where these lie in one "
            f"domain, which pods prefer ({LABEL_CLIQUE})"
        )
    return notes


def _has_fp8(resolved: ResolvedRecipe) -> bool:
    accelerator = accelerators.of_profile(resolved.accelerator_type, resolved.profile)
    return accelerator is not None and accelerator.fp8 is not None
