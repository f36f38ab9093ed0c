"""Settings that need a package which the project's image for GPUs lacks."""

from collections.abc import Iterator

from megatron_operator.api.errors import FieldError
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.catalog.weight_gradients import DELAY, graphs_sum_gradients
from megatron_operator.planner.checks.own_image import has_own_image


def package_errors(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    """Errors for settings of Megatron's own loop that need another image than the project's."""
    if resolved.engine != "megatron" or resolved.profile.platform != "gpu" or has_own_image(resolved):
        return
    yield from _delay_errors(resolved)


def _delay_errors(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    args, model = resolved.megatron_args, resolved.model
    shared = bool(model.moe_shared_expert_intermediate_size)
    overlap = resolved.parallelism.overlap_grad_reduce is not False
    if args.get(DELAY) and graphs_sum_gradients(args, shared_experts=shared, overlap=overlap):
        yield FieldError(
            f"spec.megatronArgs.{DELAY}",
            "requires Apex with CUDA graphs of these modules, and the trainer image lacks it",
            "leave it out, or attn and with shared experts moe_router out of cuda-graph-modules",
        )
