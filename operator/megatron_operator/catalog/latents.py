"""Recipes of diffusion models: they read latents that were made beforehand, and convert no weights."""

from collections.abc import Iterator
from typing import Any, Final

from megatron_operator.api.errors import FieldError
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.catalog.entry import Entry

_DATA: Final = frozenset({"volume", "mockData", "datasetRoot", "numWorkers", "check"})
_LEAVE: Final = "leave it out"
_NOT_CONVERTED: Final = "the conversion of its weights is not tried"


def refused_settings(spec: MegatronRecipeSpec, entry: Entry) -> Iterator[FieldError]:
    """Errors of settings that the function of a diffusion model does not take."""
    data: dict[str, Any] = spec.data.wire() if spec.data else {}
    for leaf in sorted(data.keys() - _DATA):
        message = f"has no effect: {entry.name} reads latents that were made beforehand"
        fix = "set data.datasetRoot to a folder of tar files with latents, or data.mockData: true"
        yield FieldError(f"spec.data.{leaf}", message, fix)
    if "check" in data and "datasetRoot" not in data:
        yield FieldError("spec.data.check", "has no effect without data.datasetRoot", _LEAVE)
    if spec.init is not None and spec.init.model_folder is not None:
        message = f"has no effect: the function of {entry.name} has the architecture itself"
        yield FieldError("spec.init.modelFolder", message, _LEAVE)
    source = spec.init.source if spec.init else None
    if source is not None and not entry.fine_tunes:
        message = f"is not passed to Megatron-Bridge: {entry.name} starts from random weights"
        yield FieldError("spec.init.from", message, f"{_LEAVE}, or choose the recipe of mode sft")
    elif source is not None and source.hugging_face is not None:
        message = f"weights of {entry.name} are not imported: {_NOT_CONVERTED}"
        fix = "set init.from.megatron or init.from.recipe: a checkpoint of Megatron-Bridge"
        yield FieldError("spec.init.from.huggingFace", message, fix)
    if spec.export is not None:
        message = f"weights of {entry.name} are not exported: {_NOT_CONVERTED}"
        fix = "leave it out: a checkpoint of Megatron is the result"
        yield FieldError("spec.export", message, fix)


def complete_data(merged: dict[str, dict[str, Any]]) -> None:
    """Remove what is not read."""
    for leaf in merged["data"].keys() - _DATA:
        merged["data"].pop(leaf)
