"""The lowest learning rate of a recipe that sets `lr` alone: it is the catalog's, for the catalog's lr."""

from typing import Final

from megatron_operator.api.errors import FieldError
from megatron_operator.catalog.resolved import ResolvedRecipe

_SHARE: Final = 0.5
"""Of lr. A rate that decays to more of it is probably not intended."""
_USUAL_SHARE: Final = 0.1
"""Of lr: the lowest rate that most entries of the catalog have."""


def lowest_rate_errors(resolved: ResolvedRecipe) -> list[FieldError]:
    """An error for a minLr above lr. It names the catalog where the recipe has not set minLr."""
    lr, lowest = resolved.training.lr, resolved.training.min_lr
    if lr is None or lowest is None or lowest <= lr:
        return []
    if _is_own(resolved):
        message, fix = f"{lowest:g} is above lr {lr:g}", f"set at most {lr:g}"
    else:
        message = f"{lowest:g}, which the recipe does not set, is above lr {lr:g}"
        fix = f"set minLr beside lr, for example {_USUAL_SHARE * lr:g}"
    return [FieldError("spec.training.minLr", message, fix)]


def lowest_rate_warnings(resolved: ResolvedRecipe) -> list[str]:
    """A warning where lr hardly decays because of a minLr that the recipe has not set."""
    training = resolved.training
    lr, lowest = training.lr, training.min_lr
    if not lr or not lowest or not _SHARE * lr <= lowest <= lr or training.lr_decay_style == "constant":
        return []
    if _is_own(resolved) or resolved.origins.get("training.lr") != "recipe":
        return []
    decay = "does not decay" if lowest == lr else f"decays to {lowest / lr:.0%} of it only"
    return [
        f"training.lr {lr:g} {decay}: minLr is {lowest:g}, which the recipe does not set; set it, for example"
        f" {_USUAL_SHARE * lr:g}"
    ]


def _is_own(resolved: ResolvedRecipe) -> bool:
    return resolved.origins.get("training.minLr") == "recipe"
