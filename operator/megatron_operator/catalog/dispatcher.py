"""The dispatcher flex of a recipe, whose packages the project's image lacks."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from megatron_operator.api.errors import FieldError
from megatron_operator.api.platform import AcceleratorProfile
from megatron_operator.api.recipe import MegatronRecipeSpec

_BACKEND: Final = "moe-flex-dispatcher-backend"
_DEFAULT_BACKEND: Final = "deepep"
"""Megatron's default (`moe_flex_dispatcher_backend`)."""


def package_errors(
    spec: MegatronRecipeSpec, args: Mapping[str, Any], profile: AcceleratorProfile, accelerator: str
) -> Iterator[FieldError]:
    """An error for the recipe's own flex where Megatron would not find the package of its backend.

    `args` are the run's `megatronArgs`. An image that the recipe names itself is not known to lack it.
    """
    if spec.model is None or spec.model.moe_token_dispatcher_type != "flex" or spec.image is not None:
        return
    backend = args.get(_BACKEND, _DEFAULT_BACKEND)
    if backend not in profile.image_has:
        yield FieldError(
            "spec.model.moeTokenDispatcherType",
            f"flex: the trainer image lacks the package of its backend {backend}",
            f"set alltoall, name an image that has it, or add {backend} to imageHas of profile {accelerator}"
            " of the platform",
        )
