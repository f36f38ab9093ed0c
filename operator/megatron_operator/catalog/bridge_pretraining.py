"""Recipes of engine `bridge` that pretrain: what they take, and what follows from it."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import FieldError
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.catalog import bridge_support, data, validation_sets
from megatron_operator.catalog.entry import Entry

TOKENIZER: Final = "HuggingFaceTokenizer"
_DATA: Final = frozenset(
    {"volume", "mockData", "blend", "sources", "prepare", "split", "maxEpochs", "check"}
    | {"dataloaderType", "numWorkers", "tokenizer"}
)
_LEAVE: Final = "leave it out"


def refused_settings(spec: MegatronRecipeSpec, entry: Entry, tuned: Collection[str]) -> Iterator[FieldError]:
    """Errors of settings that a function does not take which pretrains.

    `tuned`: recipes that fine-tune models of the family, which import and export weights.

    Those that no function takes: `fine_tuning.refused_settings`.
    """
    model = spec.init.source.hugging_face if spec.init and spec.init.source else None
    if model is not None:
        starts = "from random weights, or from a checkpoint of Megatron-Bridge"
        message = f"is not imported: {entry.name} starts {starts}"
        fix = f"set init.from.recipe or init.from.megatron.path, {_fix(entry, tuned)}"
        yield FieldError(f"spec.{model.field}", message, fix)
    if spec.init is not None and spec.init.model_folder is not None and not reads_model_folder(entry):
        message = f"has no effect: the function of {entry.name} has the architecture itself"
        fix = "leave it out; data.tokenizer.tokenizerModel names the tokenizer"
        yield FieldError("spec.init.modelFolder", message, fix)
    if spec.export is not None:
        result = "pretrained by Megatron-Bridge, and its result is a checkpoint of Megatron"
        message = f"is not available: {entry.name} is {result}"
        yield FieldError("spec.export", message, _fix(entry, tuned))
    asked: dict[str, Any] = spec.data.wire() if spec.data else {}
    for leaf in sorted(asked.keys() - _DATA):
        fix = "set data.sources, data.blend, or data.mockData: true"
        yield FieldError(f"spec.data.{leaf}", "has no effect: only recipes that fine-tune take it", fix)
    name, entries = validation_sets.listed(asked)
    for number, each in enumerate(entries):
        if each.get("validation"):
            message = "is not passed to Megatron-Bridge, which splits the datasets that it pretrains on"
            fix = "leave it out, and give validation a share in data.split"
            yield FieldError(f"spec.data.{name}[{number}].validation", message, fix)
    if (asked.get("prepare") or {}).get("source") is not None:
        message = "is not prepared for Megatron-Bridge, which trains with the tokenizer of a folder"
        yield FieldError("spec.data.prepare.source", message, "set data.sources, with format: text")


def _fix(entry: Entry, tuned: Collection[str]) -> str:
    """The recipe that imports weights of the same model, and exports them; or those of the family."""
    of_model = f"{entry.name}-sft"
    if of_model in tuned:
        return f"leave it out, or set recipe: {of_model}"
    if tuned:
        return (
            "leave it out, or choose a recipe of mode sft or lora"
            f" (megatron recipes list --family {entry.family})"
        )
    return _LEAVE


def reads_model_folder(entry: Entry) -> bool:
    """Whether the architecture is read from a configuration of Hugging Face."""
    function = next((layout.function for layout in entry.layouts if layout.function), "")
    return bridge_support.reads_model_folder(function)


def complete_data(merged: Mapping[str, dict[str, Any]], spec: MegatronRecipeSpec, found: Diagnostics) -> None:
    """Complete `data` as for Megatron Core's loop; the tokenizer is by default the one of `init.modelFolder`.

    Errors, notes and origins go to `found`.
    """
    asked = merged["data"]
    folder = spec.init.model_folder if spec.init else None
    if "tokenizerModel" in (asked.get("tokenizer") or {}):
        asked["tokenizer"].setdefault("tokenizerType", TOKENIZER)
    if folder is not None and "tokenizer" not in asked and not asked.get("mockData"):
        asked["tokenizer"] = {"tokenizerType": TOKENIZER, "tokenizerModel": folder}
        found.origin("data.tokenizer", "init.modelFolder")
    # The function has the model: nothing of it follows from the data.
    data.complete_data(asked, {}, found)
