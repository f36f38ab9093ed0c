"""The errors of a plan, as text."""

from typing import Any

from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.planner import plan


def errors(resolved: Any) -> list[str]:
    """Those with which a recipe is refused; none where it is planned."""
    try:
        plan(resolved)
    except InvalidRecipeError as refused:
        return [str(error) for error in refused.errors]
    return []
