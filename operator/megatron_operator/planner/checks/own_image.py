"""Whether a run has an image other than the project's, whose packages are not known."""

from megatron_operator.catalog.resolved import ResolvedRecipe


def has_own_image(resolved: ResolvedRecipe) -> bool:
    """Whether the recipe, or for Megatron's own loop the profile of the platform, names an image."""
    of_profile = resolved.profile.image is not None and resolved.engine == "megatron"
    return resolved.origins.get("image") == "recipe" or of_profile
