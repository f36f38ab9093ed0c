"""Models by their name on a Hugging Face hub: the folder that the import Job downloads one to."""

from collections.abc import Iterator
from typing import Final

from megatron_contract.environment import CHECKPOINT_DIR, DATA_DIR

from megatron_operator.api.errors import FieldError, shown
from megatron_operator.api.fine_tuning import HuggingFaceSource
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.recipe import MegatronRecipeSpec

FOLDER: Final = "hub"
"""Folder of a claim in which models of a hub are."""
FOLDERS: Final = (f"{DATA_DIR}/{FOLDER}/", f"{CHECKPOINT_DIR}/{FOLDER}/")
"""What the paths of such models begin with."""
DEFAULT_REVISION: Final = "main"


def _source(spec: MegatronRecipeSpec) -> HuggingFaceSource | None:
    """The model of a hub that a recipe starts from."""
    found = spec.init.source.hugging_face if spec.init and spec.init.source else None
    return None if found is None or found.name is None else found


def not_opened_errors(spec: MegatronRecipeSpec, platform: PlatformConfig) -> Iterator[FieldError]:
    """The error of a name on a hub where the platform opens none."""
    source = _source(spec)
    if source is not None and not platform.hub.enabled:
        message = f"{shown(source.name)} is a name on a hub, and platform.hub.enabled is false"
        fix = "have it set to true, or download the model to a folder of a volume and set path to that"
        yield FieldError(f"spec.{source.field}", message, fix)


def with_folder(spec: MegatronRecipeSpec) -> MegatronRecipeSpec:
    """The recipe with the folder of its hub's model as `init.from.huggingFace.path`; unchanged without one.

    Recipes with one claim, name and revision share the folder, and thus the download.
    """
    source = _source(spec)
    if source is None or spec.init is None or spec.init.source is None:
        return spec
    volume = DATA_DIR if spec.data is not None and spec.data.volume is not None else CHECKPOINT_DIR
    path = f"{volume}/{FOLDER}/{source.name}/{source.revision or DEFAULT_REVISION}"
    weights = spec.init.source.model_copy(
        update={"hugging_face": source.model_copy(update={"path": path})},
    )
    return spec.model_copy(update={"init": spec.init.model_copy(update={"source": weights})})
