"""What a recipe of engine `bridge` converts: weights that are imported before it, and its result after it."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from megatron_contract.environment import CHECKPOINT_DIR, DATA_DIR

from megatron_operator.api.errors import FieldError, shown
from megatron_operator.api.fine_tuning import ExportSpec, plain_path
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.catalog.entry import Entry

SOURCE: Final = "spec.init.from.huggingFace.path"
TARGET: Final = "spec.export.huggingFace.path"


def conversion_errors(spec: MegatronRecipeSpec, entry: Entry) -> Iterator[FieldError]:
    """Errors of `init.from.huggingFace` and `export` of a recipe that the operator starts by Bridge."""
    mounted = [CHECKPOINT_DIR]
    if spec.data is not None and spec.data.volume is not None:
        mounted.append(DATA_DIR)
    source = spec.init.source.hugging_face if spec.init and spec.init.source else None
    if source is not None:
        yield from _folder_errors(SOURCE, source.path, mounted, "the import writes beside it")
    if spec.export is None:
        return
    yield from _folder_errors(TARGET, spec.export.hugging_face.path, mounted, "the export writes it")
    yield from _merge_errors(spec, spec.export, entry)
    yield from _base_errors(spec, spec.export, mounted)


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


def _merge_errors(spec: MegatronRecipeSpec, export: ExportSpec, entry: Entry) -> Iterator[FieldError]:
    adapters = entry.modes[0] == "lora"
    if adapters and not export.merge:
        message = "is not true: adapters are exported only together with the weights that they belong to"
        yield FieldError("spec.export.merge", message, "set true")
    if adapters and spec.peft is not None and spec.peft.type == "dora":
        message = "dora cannot be exported: the converter merges LoRA only"
        yield FieldError("spec.peft.type", message, "set lora, or leave export out")
    if not adapters and export.merge is not None:
        message = f"has no effect: {entry.name} trains all weights (mode {entry.modes[0]})"
        yield FieldError("spec.export.merge", message, "leave it out")


def _base_errors(spec: MegatronRecipeSpec, export: ExportSpec, mounted: list[str]) -> Iterator[FieldError]:
    base, target = spec.init.base_of_export if spec.init else None, plain_path(export.hugging_face.path)
    if spec.init is None or base is None:
        return
    if spec.init.source is None or spec.init.source.hugging_face is None:
        why = "the export reads it"
        yield from _folder_errors("spec.init.modelFolder", base, mounted, why)
    taken = [base, spec.init.source.checkpoint if spec.init.source else base]
    if target in map(plain_path, taken):
        message = f"{shown(target)} is what the run starts from, and an export never overwrites"
        yield FieldError(TARGET, message, "name a folder that does not exist")
