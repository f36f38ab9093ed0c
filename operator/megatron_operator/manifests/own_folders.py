"""Folders that the run itself writes, which a recipe must not name for anything else."""

from collections.abc import Iterator
from pathlib import PurePosixPath

from megatron_contract.environment import CHECKPOINT_DIR, DATA_DIR

from megatron_operator.api.errors import FieldError, shown
from megatron_operator.api.fine_tuning import plain_path
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.catalog.sources import FOLDER


def own_folder_errors(name: str, resolved: ResolvedRecipe) -> Iterator[FieldError]:
    """Errors of weights and exports in the folders of the run `name`: its checkpoints, what it prepares."""
    own, prepared = f"{CHECKPOINT_DIR}/{name}", f"{DATA_DIR}/{FOLDER}"
    source = resolved.init.source
    if source is not None and source.recipe == name:
        fix = "name another recipe; a run continues from its own checkpoints by itself"
        yield FieldError("spec.init.from.recipe", "is this recipe itself", fix)
    if source is not None and source.megatron is not None and _is_in(source.megatron.path, own):
        message = f"{shown(source.megatron.path)} is where this run saves its own checkpoints"
        fix = "name another folder; a run continues from its own checkpoints by itself"
        yield FieldError("spec.init.from.megatron.path", message, fix)
    if resolved.export is None:
        return
    path = resolved.export.hugging_face.path
    for folder, what in ((own, "the checkpoints of this run"), (prepared, "prepared datasets")):
        if _is_in(path, folder):
            message = f"{shown(path)} is in the folder of {what}, {folder}"
            yield FieldError("spec.export.huggingFace.path", message, "name a folder beside it")


def _is_in(path: str, folder: str) -> bool:
    plain = PurePosixPath(plain_path(path))
    return PurePosixPath(folder) in (plain, *plain.parents)
