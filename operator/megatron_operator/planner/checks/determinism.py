"""What Megatron refuses in its deterministic mode (`ARG_VALUES_REQUIRED_FOR_DETERMINISM` of 0.19.2)."""

from collections.abc import Iterator

from megatron_operator.api.errors import FieldError
from megatron_operator.catalog.overlaps import DETERMINISTIC
from megatron_operator.catalog.resolved import ResolvedRecipe


def determinism_errors(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    """Errors for settings with which Megatron's own loop does not start in deterministic mode."""
    args = resolved.megatron_args
    if resolved.engine != "megatron" or not args.get(DETERMINISTIC):
        return
    fields = {
        "spec.parallelism.tpCommOverlap": resolved.parallelism.tp_comm_overlap,
        "spec.megatronArgs.cross-entropy-loss-fusion": args.get("cross-entropy-loss-fusion"),
    }
    for field, is_on in fields.items():
        if is_on:
            message = f"true, which Megatron refuses with megatronArgs.{DETERMINISTIC}"
            yield FieldError(field, message, "leave one of the two out")
