"""What a recipe converts: weights that are imported before it, and its result after it."""

import re
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath
from typing import Final

from megatron_contract.environment import CHECKPOINT_DIR, DATA_DIR

from megatron_operator.api.errors import FieldError, shown
from megatron_operator.api.fine_tuning import ExportSpec, InitSpec, plain_path
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.catalog import bridge_pretraining, bridge_support, fine_tuning
from megatron_operator.catalog.entry import Entry

TARGET: Final = "spec.export.huggingFace.path"
BASE: Final = "spec.export.huggingFace.base"
_SAVED_BY_RANK: Final = ("linear_q_down_proj", "linear_kv_down_proj")
"""Layers that each tensor-parallel rank has whole: Megatron-Bridge 0.6.2 saves its magnitudes of DoRA."""
_ONE_CHECKPOINT: Final = re.compile(r"iter_\d+$")


def conversion_errors(
    spec: MegatronRecipeSpec, entry: Entry | None, tuned: Collection[str]
) -> Iterator[FieldError]:
    """Errors of `init.from.huggingFace` and `export` of a recipe that the operator starts.

    `tuned`: recipes that fine-tune models of its family.
    """
    own_loop = entry is None or entry.engine == "megatron"
    if entry is not None:
        yield from _architecture_errors(spec, entry, tuned)
    mounted = [CHECKPOINT_DIR]
    if spec.data is not None and spec.data.volume is not None:
        mounted.append(DATA_DIR)
    source = spec.init.source.hugging_face if spec.init and spec.init.source else None
    if source is not None:
        yield from _folder_errors(
            f"spec.{source.field}", source.path or "", mounted, "the import writes beside it"
        )
    checkpoint = spec.init.source.megatron if spec.init and spec.init.source else None
    if own_loop and checkpoint is not None and _ONE_CHECKPOINT.match(PurePosixPath(checkpoint.path).name):
        message = f"{shown(checkpoint.path)} is one checkpoint, and Megatron reads the newest one of a folder"
        fix = f"set {PurePosixPath(checkpoint.path).parent}"
        yield FieldError("spec.init.from.megatron.path", message, fix)
    if spec.export is None:
        return
    yield from _folder_errors(TARGET, spec.export.hugging_face.path, mounted, "the export writes it")
    yield from _merge_errors(spec, spec.export, entry)
    takes_base = entry is None or own_loop or not bridge_pretraining.takes_model_folder(entry)
    yield from _base_errors(spec, spec.export, mounted, takes_base=takes_base)


def _architecture_errors(
    spec: MegatronRecipeSpec, entry: Entry, tuned: Collection[str]
) -> Iterator[FieldError]:
    reason, fix = _obstacle(entry, tuned)
    source = spec.init.source.hugging_face if spec.init and spec.init.source else None
    field_of_source = f"spec.{source.field}" if source else ""
    for field, value in ((field_of_source, source), ("spec.export", spec.export)):
        if value and reason:
            message = f"weights of {entry.name} are not converted: {reason}"
            yield FieldError(field, message, fix)


def _obstacle(entry: Entry, tuned: Collection[str]) -> tuple[str, str]:
    """Why weights of an entry are not converted, empty if they are, and what to set instead."""
    if entry.engine == "bridge":
        refused = "docs/bridge-pretraining.md lists the recipes whose weights are not converted"
        return bridge_pretraining.conversion_obstacle(entry), f"leave it out; {refused}"
    reason = bridge_support.conversion_obstacle(entry.family, entry.model)
    if f"{entry.name}-sft" in tuned:
        return reason, f"leave it out, or set recipe: {entry.name}-sft, which Megatron-Bridge trains"
    return reason, "leave it out; docs/weights.md lists the families whose weights Megatron's own loop takes"


def _folder_errors(field: str, path: str, mounted: list[str], why: str) -> Iterator[FieldError]:
    if error := _volume_error(field, path, mounted, why):
        yield error


def _volume_error(field: str, path: str, mounted: list[str], why: str) -> FieldError | None:
    """The error of a folder that is not inside of a claim, which every pod of the run sees alike."""
    if any(PurePosixPath(folder) in PurePosixPath(path).parents for folder in mounted):
        return None
    claims = " or ".join(sorted(mounted, reverse=True))
    fix = f"name a folder below {claims}; data.volume is mounted at {DATA_DIR}"
    return FieldError(field, f"{shown(path)} is no folder in a claim of the recipe, and {why}", fix)


def _merge_errors(spec: MegatronRecipeSpec, export: ExportSpec, entry: Entry | None) -> Iterator[FieldError]:
    mode = entry.modes[0] if entry else "pretrain"
    adapters = mode == "lora"
    if adapters and not export.merge:
        message = "is not true: adapters are exported only together with the weights that they belong to"
        yield FieldError("spec.export.merge", message, "set true")
    if adapters and entry is not None and spec.peft is not None and spec.peft.type == "dora":
        known = fine_tuning.target_modules(entry)
        asked = spec.peft.target_modules or known
        if saved_by_rank := [name for name in asked if name in _SAVED_BY_RANK]:
            message = (
                f"DoRA on {', '.join(saved_by_rank)} cannot be exported: each rank has magnitudes of its own"
            )
            others = ", ".join(name for name in known if name not in _SAVED_BY_RANK)
            yield FieldError("spec.peft.targetModules", message, f"set {others}, or type lora, or no export")
    if not adapters and export.merge is not None:
        name = entry.name if entry else "the recipe"
        message = f"has no effect: {name} trains all weights (mode {mode})"
        yield FieldError("spec.export.merge", message, "leave it out")


def _base_errors(
    spec: MegatronRecipeSpec, export: ExportSpec, mounted: list[str], *, takes_base: bool
) -> Iterator[FieldError]:
    """Errors of the folder with config.json and tokenizer of the result.

    `takes_base`: `base` names it where no weights are imported, else `init.modelFolder` does.
    """
    init, own = spec.init or InitSpec(), export.hugging_face.base
    imported = init.source is not None and init.source.hugging_face is not None
    if own is not None and (imported or not takes_base):
        message = f"has no effect: {'init.from.huggingFace' if imported else 'init.modelFolder'} is the base"
        yield FieldError(BASE, message, "leave it out")
        return
    base = init.base_of_export or own
    if base is None:
        if takes_base:
            message = "is not set: config.json and tokenizer of the result are copied from it"
            fix = f"name a folder with both, such as {DATA_DIR}/model, or set init.from.huggingFace"
            yield FieldError(BASE, message, fix)
        return
    if not imported:
        field = BASE if takes_base else "spec.init.modelFolder"
        yield from _folder_errors(field, base, mounted, "the export reads it")
    taken = [base, init.source.checkpoint if init.source else base]
    targets = {folder for each in export.moments if (folder := export.folder(each))}
    for target in sorted(targets.intersection(map(plain_path, taken))):
        message = f"{shown(target)} is what the run starts from, and an export never overwrites"
        yield FieldError(TARGET, message, "name a folder that does not exist")
