"""Names on a Hugging Face hub: the folder that the import Job downloads a model to, and a run's tokenizer."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from megatron_contract.environment import CHECKPOINT_DIR, DATA_DIR

from megatron_operator.api.errors import FieldError, shown
from megatron_operator.api.fine_tuning import HuggingFaceSource
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.catalog.resolved import ResolvedRecipe

FOLDER: Final = "hub"
"""Folder of a claim in which models of a hub are."""
FOLDERS: Final = (f"{DATA_DIR}/{FOLDER}/", f"{CHECKPOINT_DIR}/{FOLDER}/")
"""What the paths of such models begin with."""
DEFAULT_REVISION: Final = "main"
OFFLINE: Final = "HF_HUB_OFFLINE"
_CLOSED: Final = ("1", "ON", "YES", "TRUE")
"""Values of it with which huggingface_hub asks no hub; trainers set the first unless it is set."""
CACHES: Final = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME")
"""Variables with the folder of models that were downloaded, in the order in which the library takes them."""


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


def tokenizer_name(resolved: ResolvedRecipe) -> str | None:
    """The name on a hub that the run has instead of its tokenizer's folder; None for another tokenizer."""
    tokenizer = resolved.data.tokenizer
    if tokenizer is None or tokenizer.tokenizer_type != "HuggingFaceTokenizer":
        return None
    model = tokenizer.tokenizer_model
    return None if model is None or model.startswith("/") else model


def asks_hub(resolved: ResolvedRecipe) -> bool:
    """Whether `env` opens a hub to the trainers."""
    return resolved.env.get(OFFLINE, _CLOSED[0]).upper() not in _CLOSED


def offline_environment(resolved: ResolvedRecipe) -> dict[str, str]:
    """Variables with which a pod of the data volume alone finds the tokenizer where offline trainers do.

    Empty for a tokenizer that is no name on a hub, where a hub is opened, and where the cache may be on a
    volume that only the trainers mount, or named by an object of the cluster.
    """
    if tokenizer_name(resolved) is None or asks_hub(resolved) or resolved.env_from:
        return {}
    if not resolved.env_value_from.keys().isdisjoint((OFFLINE, *CACHES)):
        return {}
    named: dict[str, str] = {name: resolved.env[name] for name in CACHES if name in resolved.env}
    cache = PurePosixPath(next(iter(named.values()), "/"))
    if not cache.is_relative_to(DATA_DIR) and (
        cache.is_relative_to(CHECKPOINT_DIR) or resolved.profile.pod_template.volume_mounts
    ):
        return {}
    return {OFFLINE: _CLOSED[0], **named}
