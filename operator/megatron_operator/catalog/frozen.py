"""The parts of a vision-language model that a run leaves as they are (`spec.freeze`)."""

from collections.abc import Iterator
from typing import get_args

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import FieldError
from megatron_operator.api.fine_tuning import ModelPart
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.catalog import bridge_support
from megatron_operator.catalog.entry import Entry, PublishedLayout


def refused_settings(spec: MegatronRecipeSpec, entry: Entry | None) -> Iterator[FieldError]:
    """Errors of `freeze` for a recipe that has no such parts, or whose adapters are all that is trained."""
    if spec.freeze is None or (entry is not None and entry.engine == "bridge" and not entry.starts):
        return
    if entry is None or entry.media != "images":
        name = entry.name if entry else "Megatron Core's loop"
        message = f"has no effect: {name} trains no model of images and text"
        fix = "leave it out, or choose a recipe that reads images (docs/fine-tuning.md)"
        yield FieldError("spec.freeze", message, fix)
    elif entry.modes[0] == "lora":
        message = f"has no effect: {entry.name} trains adapters, and freezes all weights of the model"
        fix = "leave it out, or choose a recipe of mode sft; peft.targetModules chooses the adapted layers"
        yield FieldError("spec.freeze", message, fix)
    elif not bridge_support.freezes_parts(next((x.function for x in entry.layouts if x.function), "")):
        message = (
            f"was not tried with the model of {entry.name}: which of its weights stay the same is not known"
        )
        yield FieldError("spec.freeze", message, "leave it out")


def frozen_parts(spec: MegatronRecipeSpec, function: PublishedLayout, found: Diagnostics) -> list[ModelPart]:
    """The frozen parts of a recipe, in the order of ModelPart: its own, or those of its function."""
    own = bridge_support.frozen_parts(function.function or "")
    chosen = own if spec.freeze is None else spec.freeze
    if chosen:
        found.origins["freeze"] = str(function.function) if spec.freeze is None else "recipe"
    return [part for part in get_args(ModelPart) if part in chosen]
