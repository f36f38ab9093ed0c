"""Settings that a run does not have and that are predicted to make it faster."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from megatron_operator.api.status import Plan
from megatron_operator.catalog.entry import BACKEND
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.checks.lint import EXPERT_OVERLAP
from megatron_operator.planner.estimate import hardware
from megatron_operator.planner.estimate.step_time import expected
from megatron_operator.planner.estimate.uncertainty import mean_error
from megatron_operator.planner.estimate.workload import Workload

_FULL = 0.8
"""Share of the memory above which a smaller optimizer may allow a faster layout."""
_GRAPHED = {False: ["attn", "mlp"], True: ["attn", "moe_router", "moe_preprocess"]}
"""Modules in CUDA graphs, without and with experts, as in functions of Megatron-Bridge."""
_LACKS = "which the project's image lacks"
_MEMORY = "graphs need memory that is not estimated"
_WHOLE_ITERATIONS: dict[str, Any] = {
    "model.moeTokenDispatcherType": "flex",
    f"megatronArgs.{BACKEND}": "hybridep",
    "megatronArgs.use-transformer-engine-op-fuser": True,
    "megatronArgs.moe-mlp-glu-interleave-size": 32,
    "megatronArgs.moe-expert-rank-capacity-factor": 1.5,
    "megatronArgs.moe-paged-stash": True,
    "megatronArgs.cuda-graph-impl": "full_iteration",
    "megatronArgs.te-rng-tracker": True,
    "megatronArgs.no-check-for-nan-in-loss-and-grad": True,
}
"""As in the functions of Megatron-Bridge for Blackwell."""


@dataclass(frozen=True, slots=True)
class Switch:
    """Settings by their paths below `spec`, which belong together."""

    settings: Mapping[str, Any]
    caveat: str = ""
    """What it needs or risks; empty where nothing is known."""


def least_gain(plan: Plan) -> float:
    """The share by which a run must become faster for the prediction to mean something.

    It is the mean error of runs like this one, as the plan's prediction interval has it; 0 without one.
    """
    speed = plan.expected
    if speed is None or speed.tokens_per_second_per_gpu_high is None:
        return 0.0
    return mean_error(speed.tokens_per_second_per_gpu_high / speed.tokens_per_second_per_gpu)


def promising(resolved: ResolvedRecipe, plan: Plan) -> Iterator[Switch]:
    """Switches worth planning with: they gain enough on the plan's layout, or may allow a better one.

    What the recipe itself sets is not proposed. Raises InvalidRecipeError when the model is incomplete.
    """
    accelerator = hardware.of_profile(resolved.accelerator_type, resolved.profile)
    if accelerator is None or plan.expected is None or resolved.engine == "bridge":
        return
    workload = Workload.of(resolved, plan)
    now = expected(workload, accelerator).step_seconds
    for switch, faster in _available(resolved, plan, workload):
        set_by_user = any(resolved.origins.get(path) == "recipe" for path in switch.settings)
        if set_by_user:
            continue
        if faster is None or now / expected(faster, accelerator).step_seconds - 1 >= least_gain(plan):
            yield switch


def _available(resolved: ResolvedRecipe, plan: Plan, w: Workload) -> Iterator[tuple[Switch, Workload | None]]:
    """Switches that the run lacks, with the workload that has them; none where the layout would change."""
    run, dims, experts = w.execution, w.dims, bool(resolved.model.num_experts)
    full = w.recompute.granularity == "full"
    if w.numerics.gradient == 4 and w.numerics.weight == 2:
        reduced = replace(w, numerics=replace(w.numerics, gradient=2))
        yield Switch({"megatronArgs.grad-reduce-in-bf16": True}, "gradients are summed in BF16"), reduced
    if dims.tp > 1 and w.sequence_parallel and not run.tensor_overlap:
        hidden = replace(w, execution=replace(run, tensor_overlap=True))
        yield Switch({"parallelism.tpCommOverlap": True}), hidden
    interleaved = dims.pp == 1 or dims.vp > 1
    if experts and dims.ep > 1 and interleaved and not full and not run.expert_overlap:
        hidden = replace(w, execution=replace(run, expert_overlap=True))
        hopper = (
            hardware.generation(resolved.accelerator_type, resolved.profile) is hardware.Generation.HOPPER
        )
        caveat = "on Hopper it may cost more than it hides" if hopper else ""
        yield Switch({f"megatronArgs.{EXPERT_OVERLAP}": True}, caveat), hidden
    if run.graphs == "none" and not full:
        graphs = {
            "megatronArgs.cuda-graph-impl": "transformer_engine",
            "megatronArgs.cuda-graph-modules": _GRAPHED[experts],
            "megatronArgs.te-rng-tracker": True,
        }
        captured = replace(w, execution=replace(run, graphs="partial"))
        yield Switch(graphs, _MEMORY), captured
    if experts and dims.ep > 1:
        yield from _of_flex(resolved, w)
    if _optimizer_is_in_the_way(resolved, plan):
        aware = {
            "training.usePrecisionAwareOptimizer": True,
            "megatronArgs.exp-avg-dtype": "bf16",
            "megatronArgs.exp-avg-sq-dtype": "bf16",
        }
        yield Switch(aware, "moments are kept in BF16"), None


def _of_flex(resolved: ResolvedRecipe, w: Workload) -> Iterator[tuple[Switch, Workload]]:
    """The dispatcher flex, and with it CUDA graphs of whole iterations."""
    run, has = w.execution, resolved.profile.image_has
    once = replace(run, deduplicated_dispatch=True)
    if not run.deduplicated_dispatch:
        backend = next(iter(has), None)
        named = {f"megatronArgs.{BACKEND}": backend} if backend else {}
        caveat = "" if backend else f"needs DeepEP or HybridEP, {_LACKS}"
        flex = {"model.moeTokenDispatcherType": "flex"} | named
        yield Switch(flex, caveat), replace(w, execution=once)
    # Graphs need buffers of a fixed size; these need the fuser, whose kernels are for MXFP8 on Blackwell.
    if run.graphs == "none" and w.numerics.fp8 and resolved.training.fp8_recipe == "mxfp8":
        needs = "" if "hybridep" in has else f"needs HybridEP, {_LACKS}; "
        captured = replace(once, graphs="full", fused_experts=True)
        yield Switch(_WHOLE_ITERATIONS, f"{needs}{_MEMORY}"), replace(w, execution=captured)


def _optimizer_is_in_the_way(resolved: ResolvedRecipe, plan: Plan) -> bool:
    """Whether less optimizer state may allow a layout that recomputes less or has fewer stages."""
    training, memory = resolved.training, plan.memory_per_gpu
    if training.use_precision_aware_optimizer or not training.bf16 or resolved.layout is not None:
        return False
    if training.optimizer not in (None, "adam") or memory is None or memory.capacity is None:
        return False
    return plan.recompute_granularity is not None or memory.total > _FULL * memory.capacity
