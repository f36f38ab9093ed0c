"""Weight gradients that are computed later, in CUDA graphs: Megatron sums those with a kernel of Apex."""

from collections.abc import Mapping
from typing import Any, Final

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.catalog.entry import PublishedLayout

DELAY: Final = "delay-wgrad-compute"
_PATH: Final = f"megatronArgs.{DELAY}"


def graphs_sum_gradients(args: Mapping[str, Any], *, shared_experts: bool, overlap: bool) -> bool:
    """Whether graphs capture layers whose weight gradients are delayed (`validate_args`).

    `args` are the run's `megatronArgs`, and `overlap` is whether gradients are reduced during the backward
    pass.
    """
    value = args.get("cuda-graph-modules", args.get("cuda-graph-scope", []))
    modules = value if isinstance(value, list) else [value]
    return overlap and ("attn" in modules or ("moe_router" in modules and shared_experts))


def leave_out_delayed(
    merged: Mapping[str, dict[str, Any]], layout: PublishedLayout | None, found: Diagnostics
) -> None:
    """Remove the catalog's delay from the settings, with a note, where only an image with Apex has it."""
    args = merged["megatronArgs"]
    if layout is None or not args.get(DELAY) or found.is_set_by_user(_PATH):
        return
    shared = bool(merged["model"].get("moeSharedExpertIntermediateSize"))
    overlap = merged["parallelism"].get("overlapGradReduce") is not False
    if graphs_sum_gradients(args, shared_experts=shared, overlap=overlap):
        del args[DELAY]
        found.origins.pop(_PATH, None)
        name = layout.function or layout.source
        found.note(f"left out of {name}: delayed weight gradients, which need Apex in these CUDA graphs")
