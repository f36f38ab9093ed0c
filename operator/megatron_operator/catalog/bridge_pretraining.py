"""Recipes of engine `bridge` that pretrain: what they take, and what follows from it."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import FieldError
from megatron_operator.api.fine_tuning import InitSpec
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.catalog import bridge_support, data
from megatron_operator.catalog.entry import Entry

TOKENIZER: Final = "HuggingFaceTokenizer"
_DATA: Final = frozenset(
    {"volume", "mockData", "blend", "sources", "prepare", "split", "maxEpochs", "check"}
    | {"dataloaderType", "numWorkers", "tokenizer"}
)


def refused_settings(spec: MegatronRecipeSpec, entry: Entry) -> Iterator[FieldError]:
    """Errors of settings that a function does not take which pretrains.

    Those that no function takes: `fine_tuning.refused_settings`; weights that do not convert: `conversions`.
    """
    if spec.init is not None and spec.init.model_folder is not None and not reads_model_folder(entry):
        message = f"has no effect: the function of {entry.name} has the architecture itself"
        fix = "leave it out; data.tokenizer.tokenizerModel names the tokenizer"
        yield FieldError("spec.init.modelFolder", message, fix)
    asked: dict[str, Any] = spec.data.wire() if spec.data else {}
    for leaf in sorted(asked.keys() - _DATA):
        fix = "set data.sources, data.blend, or data.mockData: true"
        yield FieldError(f"spec.data.{leaf}", "has no effect: only recipes that fine-tune take it", fix)
    if (asked.get("prepare") or {}).get("source") is not None:
        message = "is not prepared for Megatron-Bridge, which trains with the tokenizer of a folder"
        yield FieldError("spec.data.prepare.source", message, "set data.sources, with format: text")


def reads_model_folder(entry: Entry) -> bool:
    """Whether the architecture is read from a configuration of Hugging Face."""
    return bridge_support.reads_model_folder(_function(entry))


def takes_model_folder(entry: Entry) -> bool:
    """Whether a recipe of engine `bridge` takes `init.modelFolder`."""
    return entry.fine_tunes or reads_model_folder(entry)


def conversion_obstacle(entry: Entry) -> str:
    """Why weights of its model are neither imported nor exported; empty if they are."""
    return "" if entry.fine_tunes else bridge_support.pretraining_conversion_obstacle(_function(entry))


def _function(entry: Entry) -> str:
    return next((layout.function for layout in entry.layouts if layout.function), "")


def complete_data(merged: Mapping[str, dict[str, Any]], spec: MegatronRecipeSpec, found: Diagnostics) -> None:
    """Complete `data` as for Megatron Core's loop; the tokenizer is by default that of the model's folder.

    Errors, notes and origins go to `found`.
    """
    asked, init = merged["data"], spec.init or InitSpec()
    folder = init.folder_of_model
    data.complete_tokenizer(asked)
    if folder is not None and "tokenizer" not in asked and not asked.get("mockData"):
        asked["tokenizer"] = {"tokenizerType": TOKENIZER, "tokenizerModel": folder}
        found.origin("data.tokenizer", init.field_of_model)
    # The function has the model: nothing of it follows from the data.
    data.complete_data(asked, {}, found)
