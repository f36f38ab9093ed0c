"""Recipes without a published layout: one for other accelerators, or one that the planner rejects."""

from collections.abc import Callable

from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.training import ParallelismSpec, TrainingSpec
from megatron_operator.catalog.published_layouts import layout_notes
from megatron_operator.catalog.resolved import ResolvedRecipe


def without_published_layout(resolved: ResolvedRecipe) -> ResolvedRecipe:
    """The recipe without a layout that was published for other accelerators."""
    if resolved.layout is not None:
        return resolved
    return _without(resolved, lambda path: resolved.origins.get(path) != "recipe")


def without_rejected_layout(resolved: ResolvedRecipe, invalid: InvalidRecipeError) -> ResolvedRecipe:
    """The recipe without its published layout, which the planner rejects with the errors of `invalid`.

    Bridge shards the models of some functions completely (FSDP), or fits more into the memory than the
    estimate allows. A layout of the catalog may not suit what the recipe sets beside it.
    Raises `invalid` where there is no such layout, and where a setting of the recipe itself is wrong.
    """
    layout, function = resolved.layout, resolved.function
    if layout is None or resolved.engine == "bridge":
        raise invalid
    if function is None and any(_is_of_recipe(resolved, error.field) for error in invalid.errors):
        raise invalid
    name = resolved.profile.known_as(resolved.accelerator_type)
    free = resolved.model_copy(update={"layout": None})
    if function is not None:
        free, what = without_published_layout(free), f"the layout of {function.function}"
    else:
        # Batch and learning rate that come with a layout belong together, and suit other layouts.
        free = _without(free, lambda path: _of_layout(resolved, path))
        what = f"the published layout for {resolved.accelerator_count} x {name}"
    of_layout = layout_notes(layout, resolved.accelerator_count, name)
    kept = [note for note in resolved.notes if note not in of_layout]
    error = invalid.errors[0]
    note = f"{what} is not used ({error.field}: {error.message}): planned"
    return free.model_copy(update={"notes": [*kept, note], "origins": _present_origins(free)})


def _without(resolved: ResolvedRecipe, is_dropped: Callable[[str], bool]) -> ResolvedRecipe:
    """The recipe without the sizes and the micro batch that are dropped, by their paths below `spec`, and
    without what makes a published layout fast."""
    sizes = {
        alias: value
        for alias, value in resolved.parallelism.wire().items()
        if not is_dropped(f"parallelism.{alias}")
    }
    fast = {
        name: None
        for name in (
            *("fp8_param_gather", "use_precision_aware_optimizer"),
            *("fp4_format", "fp4_param_gather"),
        )
        if _of_layout(resolved, f"training.{TrainingSpec.model_fields[name].alias}")
    }
    if is_dropped("training.microBatchSize"):
        fast["micro_batch_size"] = None
    model = resolved.model
    if _of_layout(resolved, "model.moeTokenDispatcherType"):
        model = model.model_copy(update={"moe_token_dispatcher_type": None})
    args = resolved.megatron_args.items()
    update = {
        "parallelism": ParallelismSpec.model_validate(sizes),
        "training": resolved.training.model_copy(update=fast),
        "model": model,
        "megatron_args": {k: v for k, v in args if not _of_layout(resolved, f"megatronArgs.{k}")},
    }
    return resolved.model_copy(update=update)


def _of_layout(resolved: ResolvedRecipe, path: str) -> bool:
    """Whether a setting came with a published layout."""
    return ", layout " in resolved.origins.get(path, "")


def _is_of_recipe(resolved: ResolvedRecipe, field: str) -> bool:
    return resolved.origins.get(field.removeprefix("spec.")) == "recipe"


def _present_origins(resolved: ResolvedRecipe) -> dict[str, str]:
    """The origins without those of sizes that the recipe no longer has."""
    present = {f"parallelism.{alias}" for alias in resolved.parallelism.wire()}
    return {
        path: origin
        for path, origin in resolved.origins.items()
        if path in present or not path.startswith("parallelism.")
    }
