"""Checks of what CUDA graphs capture, alone and beside recomputation.

Source: `TransformerConfig.__post_init__` of megatron-core 0.19.2.
"""

from collections.abc import Iterator
from typing import Final

from megatron_operator.api.errors import FieldError
from megatron_operator.api.model import ModelSpec
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.estimate.layer_pattern import moe_pattern
from megatron_operator.planner.estimate.workload import Recomputation

_IMPL: Final = "cuda-graph-impl"
_MODULES: Final = "cuda-graph-modules"
_OLDER_MODULES: Final = "cuda-graph-scope"
_WHOLE: Final = frozenset({"full", "full_iteration"})
"""Older names of what captures all modules."""
_DROPOUT: Final = 0.1
"""Megatron's default."""


def graph_errors(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    """What Megatron refuses of CUDA graphs, as far as the recipe sets it."""
    args = resolved.megatron_args
    kind = args.get(_IMPL, "none")
    if kind in ("local", "transformer_engine") and resolved.parallelism.recompute_granularity == "full":
        yield FieldError(
            f"spec.megatronArgs.{_IMPL}",
            f"{kind} with recomputeGranularity full, which only supports whole-iteration graphs",
            "set full_iteration, or recomputeGranularity selective",
        )
    if kind == "full_iteration" and _MODULES in args:
        yield FieldError(
            f"spec.megatronArgs.{_MODULES}",
            "with cuda-graph-impl full_iteration, which captures everything",
            "leave it out, or set cuda-graph-impl transformer_engine",
        )
    if kind != "none" and resolved.engine == "megatron":
        if kind != "full_iteration":
            yield from _module_errors(resolved)
        yield from _recomputation_errors(resolved)


def recomputed_modules(resolved: ResolvedRecipe) -> frozenset[str]:
    """Modules that the recipe recomputes by themselves, with Megatron's default."""
    p = resolved.parallelism
    return Recomputation(p.recompute_granularity, modules=frozenset(p.recompute_modules or ())).selected


def captured_modules(resolved: ResolvedRecipe) -> frozenset[str]:
    """Modules that graphs capture; empty where they capture all."""
    args = resolved.megatron_args
    value = args.get(_MODULES, args.get(_OLDER_MODULES, []))
    return frozenset(map(str, value if isinstance(value, list) else [value])) - _WHOLE


def _module_errors(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    """Graphs have modules of the model alone, and of its experts what needs nothing from the host."""
    captured, args = captured_modules(resolved), resolved.megatron_args
    of_router = captured & {"moe_router", "moe_preprocess"}
    if args[_IMPL] == "local" and of_router:
        captured |= {"moe_router", "moe_preprocess"}  # which that implementation does not distinguish
    problems = []
    if (resolved.model.num_experts or 1) <= 1:
        if of_experts := sorted(of_router | captured & {"moe"}):
            problems.append((f"{', '.join(of_experts)} without experts", "leave it out"))
    else:
        if "moe_preprocess" in captured and "moe_router" not in captured:
            problems.append(("moe_preprocess without moe_router", "set both, or leave it out"))
        problems += _expert_problems(resolved, captured)
    flag = _MODULES if _MODULES in args else _OLDER_MODULES
    for problem in problems:
        yield FieldError(f"spec.megatronArgs.{flag}", *problem)


def _expert_problems(resolved: ResolvedRecipe, captured: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Messages and fixes for modules of a model with experts."""
    args = resolved.megatron_args
    if {"moe", "moe_router"} <= captured:
        yield "moe and moe_router, a part of it", "leave one of the two out"
    if "mlp" in captured and not _has_dense_layers(resolved.model):
        yield "mlp, and the model has no dense layers (moeLayerFreq)", "leave it out"
    capacity = args.get("moe-expert-capacity-factor")
    if capacity is not None and args.get("moe-pad-expert-input-to-capacity"):
        return
    if "moe" in captured:
        fix = (
            "set moe-expert-capacity-factor and moe-pad-expert-input-to-capacity: true, or moe_router and"
            " moe_preprocess instead"
        )
        yield "moe, where the number of tokens of each expert varies", fix
    padding = "moe-router-padding-for-fp8"
    copied = "moe-expert-capacity-factor" if capacity is not None else padding if args.get(padding) else None
    alltoall = resolved.model.moe_token_dispatcher_type in (None, "alltoall")
    if "moe_preprocess" in captured and alltoall and copied:
        message = f"moe_preprocess with {copied}, with which it copies the number of tokens to the host"
        yield message, f"leave moe_preprocess or {copied} out"


def _has_dense_layers(model: ModelSpec) -> bool:
    try:
        return not all(moe_pattern(model.moe_layer_freq, model.num_layers or 0))
    except ValueError:  # The pattern is refused as such.
        return True


def _recomputation_errors(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    """No module is recomputed that is partly in a graph, and none in a graph that draws random numbers."""
    model, recomputed, captured = resolved.model, recomputed_modules(resolved), captured_modules(resolved)
    kind = resolved.megatron_args[_IMPL]
    if kind == "transformer_engine" and "moe" in recomputed and "moe_router" in captured:
        yield FieldError(
            f"spec.megatronArgs.{_MODULES}",
            "moe_router with recomputeModules moe: a graph cannot have a part of what is recomputed",
            "leave moe_router and moe_preprocess out, or recompute moe_act instead of moe",
        )
    field, value = (_MODULES, ", ".join(sorted(captured))) if captured else (_IMPL, str(kind))
    for module, graphed, name, dropout in (
        ("core_attn", "attn", "attentionDropout", model.attention_dropout),
        ("mlp", "mlp", "hiddenDropout", model.hidden_dropout),
        ("moe", "moe", "hiddenDropout", model.hidden_dropout),
    ):
        probability = _DROPOUT if dropout is None else dropout
        if probability and module in recomputed and (not captured or graphed in captured):
            yield FieldError(
                f"spec.megatronArgs.{field}",
                f"{value} with {module} recomputed and model.{name} {probability:g}: graphs recompute nothing"
                " that draws random numbers",
                f"set model.{name}: 0, or other recomputeModules than {module}",
            )
