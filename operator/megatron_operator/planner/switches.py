"""Settings that a run does not have and that are predicted to make it faster.

None is taken without being asked: docs/planner.md has the reason for each. Where the planner chooses the
layout, each is planned with, because it may allow or favour another layout: smaller gradients let one fit
that recomputes less, and overlapped experts need virtual stages, which a layout without them lacks.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

from megatron_operator.api.platform import DispatcherPackage
from megatron_operator.api.status import Plan
from megatron_operator.catalog.entry import BACKEND
from megatron_operator.catalog.overlaps import DETERMINISTIC
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.checks.flag_requirements import EXPERT_OVERLAP
from megatron_operator.planner.estimate import hardware
from megatron_operator.planner.estimate.step_time import expected
from megatron_operator.planner.estimate.uncertainty import mean_error
from megatron_operator.planner.estimate.workload import Workload
from megatron_operator.planner.search.smaller_states import BF16_GRADIENTS, BF16_MOMENTS

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
    numerics: bool = False
    """Whether it changes the results of a step by more than the order of a sum."""
    ready: bool = True
    """Whether the image has all that it needs, as far as the platform states."""


def least_gain(plan: Plan) -> float:
    """The share by which a run must become faster for the prediction to mean something.

    It is the mean error of runs like this one, as the plan's prediction interval has it; 0 without one.
    """
    speed = plan.expected
    if speed is None or speed.tokens_per_second_per_gpu_high is None:
        return 0.0
    return mean_error(speed.tokens_per_second_per_gpu_high / speed.tokens_per_second_per_gpu)


def promising(resolved: ResolvedRecipe, plan: Plan) -> Iterator[Switch]:
    """Switches worth planning with: they gain enough on the plan's layout, or the layout is open.

    The layout is open where the catalog has none for the run: a switch may then allow a better one. What the
    recipe itself sets is not proposed. Raises InvalidRecipeError when the model is incomplete.
    """
    accelerator = hardware.of_profile(resolved.accelerator_type, resolved.profile, resolved.per_node)
    if accelerator is None or plan.expected is None or resolved.engine == "bridge" or plan.use_megatron_fsdp:
        return
    workload = Workload.of(resolved, plan)
    now = expected(workload, accelerator).step_seconds
    is_open = resolved.layout is None
    for switch, faster in _available(resolved, workload):
        if any(resolved.origins.get(path) == "recipe" for path in switch.settings):
            continue
        gain = now / expected(faster, accelerator).step_seconds - 1 if faster else 0.0
        if is_open or (faster and gain >= least_gain(plan)):
            yield switch


def together(switches: Iterable[Switch]) -> Switch | None:
    """All of the switches that keep the numerics and that the image is ready for, the first ones preferred.

    A switch that sets a field of an earlier one otherwise is left out. None for fewer than two.
    """
    settings: dict[str, Any] = {}
    caveats: list[str] = []
    count = 0
    for switch in switches:
        fits = all(settings.get(path, value) == value for path, value in switch.settings.items())
        if switch.numerics or not switch.ready or not fits:
            continue
        settings |= switch.settings
        caveats += [switch.caveat] if switch.caveat else []
        count += 1
    return Switch(settings, "; ".join(caveats)) if count > 1 else None


def _available(resolved: ResolvedRecipe, w: Workload) -> Iterator[tuple[Switch, Workload | None]]:
    """Switches that the run lacks, with the plan's workload that has them.

    Without a workload they need another layout than the plan's, or change only what fits.
    """
    run, dims, experts = w.execution, w.dims, bool(resolved.model.num_experts)
    full = w.recompute.granularity == "full"
    yield from _of_memory(resolved, w)
    accelerator = hardware.of_profile(resolved.accelerator_type, resolved.profile, resolved.per_node)
    linked = accelerator is None or accelerator.overlaps_tensor_parallel(dims.tp)
    exact = resolved.megatron_args.get(DETERMINISTIC)
    if w.sequence_parallel and not run.tensor_overlap and linked and not exact:
        hidden = replace(w, execution=replace(run, tensor_overlap=True))
        yield Switch({"parallelism.tpCommOverlap": True}), hidden if dims.tp > 1 else None
    if experts and not run.expert_overlap:
        possible = dims.ep > 1 and (dims.pp == 1 or dims.vp > 1) and not full
        hidden = replace(w, execution=replace(run, expert_overlap=True))
        hopper = (
            hardware.generation(resolved.accelerator_type, resolved.profile) is hardware.Generation.HOPPER
        )
        caveat = "on Hopper it may cost more than it hides" if hopper else ""
        yield Switch({f"megatronArgs.{EXPERT_OVERLAP}": True}, caveat), hidden if possible else None
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


def _of_memory(resolved: ResolvedRecipe, w: Workload) -> Iterator[tuple[Switch, Workload | None]]:
    """Smaller gradients and moments: less to reduce, and room for layouts that recompute less."""
    training = resolved.training
    if w.numerics.weight != 2:
        return
    reduced = "gradients are summed in BF16"
    small = w.numerics.gradient == 2
    if not small:
        yield (
            Switch(BF16_GRADIENTS, reduced, numerics=True),
            replace(w, numerics=replace(w.numerics, gradient=2)),
        )
    adam = training.optimizer in (None, "adam") and w.distributed_optimizer
    if adam and training.bf16 and not training.use_precision_aware_optimizer:
        kept = "moments are kept in BF16"
        yield Switch(BF16_MOMENTS, kept, numerics=True), None
        if not small:
            both = BF16_GRADIENTS | BF16_MOMENTS
            yield Switch(both, f"{reduced}, {kept}", numerics=True), None


def _of_flex(resolved: ResolvedRecipe, w: Workload) -> Iterator[tuple[Switch, Workload]]:
    """The dispatcher flex, and with it CUDA graphs of whole iterations."""
    run = w.execution
    has = [each for each in resolved.profile.image_has if each in get_args(DispatcherPackage)]
    once = replace(run, deduplicated_dispatch=True)
    if not run.deduplicated_dispatch:
        backend = next(iter(has), None)
        named = {f"megatronArgs.{BACKEND}": backend} if backend else {}
        caveat = "" if backend else f"needs DeepEP or HybridEP, {_LACKS}"
        flex = {"model.moeTokenDispatcherType": "flex"} | named
        yield Switch(flex, caveat, ready=backend is not None), replace(w, execution=once)
    # Graphs need buffers of a fixed size; these need the fuser, whose kernels are for MXFP8 on Blackwell.
    if run.graphs != "full" and w.numerics.fp8 and resolved.training.fp8_recipe == "mxfp8":
        ready = "hybridep" in has
        needs = "" if ready else f"needs HybridEP, {_LACKS}; "
        captured = replace(once, graphs="full", fused_experts=True)
        yield Switch(_WHOLE_ITERATIONS, f"{needs}{_MEMORY}", ready=ready), replace(w, execution=captured)
