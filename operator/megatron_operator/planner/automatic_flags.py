"""Megatron's flags that no field states and that long runs on GPUs should have.

docs/planner.md lists each with its source. `megatronArgs: {manual-gc: false}` turns one off; a flag that the
recipe states itself keeps the recipe's value.
"""

from collections.abc import Iterator

from megatron_operator.api.status import Plan
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.checks.flag_requirements import EXPERT_OVERLAP
from megatron_operator.planner.estimate import hardware

_MANUAL_GC_INTERVAL = 100
"""Iterations between two garbage collections, as in the common recipe of Megatron-Bridge."""
_MANY_RANKS = 2048

Flag = tuple[str, str | None]
"""Name without dashes, and value; a switch has none."""


def automatic_flags(resolved: ResolvedRecipe, plan: Plan) -> list[str]:
    """Arguments of a run on GPUs; none on platform cpu."""
    if resolved.profile.platform != "gpu":
        return []
    chosen = (*_loop(resolved), *_checkpoints(plan), *_groups(resolved, plan), *_experts(resolved, plan))
    words = []
    for name, value in chosen:
        if name not in resolved.megatron_args:
            words += [f"--{name}"] if value is None else [f"--{name}", value]
    return words


def has_fused_experts(resolved: ResolvedRecipe) -> bool:
    """Whether experts have Transformer Engine's kernels, such as the fused permutation of tokens."""
    return resolved.profile.platform == "gpu" and resolved.training.transformer_impl != "local"


def _loop(resolved: ResolvedRecipe) -> Iterator[Flag]:
    args = resolved.megatron_args
    if args.get("manual-gc", True):
        yield "manual-gc", None
        yield "manual-gc-interval", str(_MANUAL_GC_INTERVAL)
    # Megatron's deterministic mode refuses the fusion; Transformer Engine's implementation it always refuses.
    if args.get("cross-entropy-loss-fusion", True) and not args.get("deterministic-mode"):
        yield "cross-entropy-loss-fusion", None
        yield "cross-entropy-fusion-impl", "native"


def _checkpoints(plan: Plan) -> Iterator[Flag]:
    yield "ckpt-assume-constant-structure", None
    if plan.data_parallel_size * plan.context_parallel_size > 1:
        yield "ckpt-fully-parallel-load", None


def _groups(resolved: ResolvedRecipe, plan: Plan) -> Iterator[Flag]:
    """No second set of process groups over gloo, unless gathering the optimizer's state needs them."""
    gathers = resolved.megatron_args.get("distrib-optim-fully-reshardable-mem-efficient")
    if plan.world_size > _MANY_RANKS and not gathers:
        yield "disable-gloo-process-groups", None


def _experts(resolved: ResolvedRecipe, plan: Plan) -> Iterator[Flag]:
    m, args = resolved.model, resolved.megatron_args
    generation = hardware.generation(resolved.accelerator_type, resolved.profile)
    if not m.num_experts or not has_fused_experts(resolved) or generation is None:
        return
    if m.moe_router_dtype != "fp64":
        yield "moe-router-fusion", None
    alltoall = m.moe_token_dispatcher_type in (None, "alltoall")
    exchanged = alltoall and plan.expert_model_parallel_size > 1
    taken = args.get(EXPERT_OVERLAP) or "shared_experts" in (plan.recompute_modules or ())
    graphs = args.get("cuda-graph-impl", "none") != "none"
    gated_or_other = m.moe_shared_expert_gate or taken or graphs
    hopper = generation is hardware.Generation.HOPPER
    if m.moe_shared_expert_intermediate_size and hopper and exchanged and not gated_or_other:
        yield "moe-shared-expert-overlap", None
