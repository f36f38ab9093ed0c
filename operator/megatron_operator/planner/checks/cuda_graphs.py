"""Checks of CUDA graphs beside recomputation (`TransformerConfig.__post_init__` of megatron-core 0.19.2)."""

from collections.abc import Iterator
from typing import Final

from megatron_operator.api.errors import FieldError
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.estimate.workload import Recomputation

_IMPL: Final = "cuda-graph-impl"
_MODULES: Final = "cuda-graph-modules"
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
        yield from _recomputation_errors(resolved)


def recomputed_modules(resolved: ResolvedRecipe) -> frozenset[str]:
    """Modules that the recipe recomputes by themselves, with Megatron's default."""
    p = resolved.parallelism
    return Recomputation(p.recompute_granularity, modules=frozenset(p.recompute_modules or ())).selected


def captured_modules(resolved: ResolvedRecipe) -> frozenset[str]:
    """Modules that graphs capture; empty where they capture all."""
    args = resolved.megatron_args
    value = args.get(_MODULES, args.get("cuda-graph-scope", []))
    return frozenset(map(str, value if isinstance(value, list) else [value])) - _WHOLE


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
