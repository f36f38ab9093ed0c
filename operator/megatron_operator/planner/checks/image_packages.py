"""Settings that need a package which the project's image for GPUs lacks: Apex and FlashAttention."""

from collections.abc import Iterator
from typing import Final

from megatron_operator.api.errors import FieldError
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.catalog.weight_gradients import DELAY, graphs_sum_gradients
from megatron_operator.planner.checks.own_image import has_own_image

_FUSED_OFF: Final = ("no-persist-layer-norm", "no-masked-softmax-fusion")
"""Flags without which Megatron's own layers need kernels of Apex."""


def package_errors(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    """Errors for settings of Megatron's own loop that need another image than the project's."""
    if resolved.engine != "megatron" or resolved.profile.platform != "gpu" or has_own_image(resolved):
        return
    yield from _delay_errors(resolved)
    yield from _local_errors(resolved)
    training = resolved.training
    if training.attention_backend == "flash" and training.transformer_impl != "local":
        yield FieldError(
            "spec.training.attentionBackend",
            "flash requires FlashAttention, which the trainer image lacks",
            "set auto or fused",
        )


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


def _local_errors(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    """Without Apex, norms of Megatron's own layers are torch's, which refuse two of its defaults.

    The softmax of their attention imports Apex's kernel. A specification of layers may have others.
    """
    args, sizes = resolved.megatron_args, resolved.parallelism
    if resolved.training.transformer_impl != "local" or "spec" in args:
        return
    whole = sizes.sequence_parallel is False or sizes.tensor_model_parallel_size == 1
    if not whole or not all(args.get(flag) for flag in _FUSED_OFF):
        yield FieldError(
            "spec.training.transformerImpl",
            "local requires Apex, which the trainer image lacks",
            f"leave it out, or set megatronArgs {' and '.join(_FUSED_OFF)}: true and"
            " parallelism.sequenceParallel: false",
        )
