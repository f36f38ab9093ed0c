"""Whether a run can start from the weights of another recipe (`init.from.recipe`)."""

import contextlib
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from megatron_operator import catalog
from megatron_operator.api.conditions import Phase
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.reasons import Reason
from megatron_operator.catalog.fine_tuning import fixes_tensor_parallelism
from megatron_operator.lifecycle.actions import LATER
from megatron_operator.lifecycle.checkpoint_compatibility import SHARDED
from megatron_operator.lifecycle.desired import DesiredState
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.ownership import Obstacle
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.manifests.metadata import object_name

_FIELD: Final = "spec.init.from.recipe"
_ARCHITECTURE: Final = "model."
_PEFT: Final = "peft."
_TENSORS: Final = "parallelism.tensorModelParallelSize"


def recipe_to_start_from(status: StatusBuilder, desired: DesiredState) -> str | None:
    """The recipe whose weights the first start reads; None for a run that has a checkpoint of its own."""
    source = desired.run.resolved.init.source
    return None if source is None or status.checkpoint.iteration is not None else source.recipe


def weights_obstacle(desired: DesiredState, name: str, other: Object | None) -> Obstacle | None:
    """Why the weights of the recipe `name` cannot be loaded; None where they can.

    `other` is that recipe in the run's own namespace, None where there is none.
    """
    problem = _problem(desired, other or {})
    if problem is None:
        return None
    return Obstacle(Reason.WEIGHTS_NOT_READY, f"{_FIELD}: recipe {name} {problem}", LATER)


def _problem(desired: DesiredState, other: Mapping[str, Any]) -> str | None:
    if not other:
        return f"does not exist in namespace {desired.run.namespace}; create it, or name another"
    spec, status = other.get("spec") or {}, other.get("status") or {}
    if status.get("phase") != Phase.SUCCEEDED:
        return f"is {status.get('phase') or Phase.PENDING}; the run waits until it is {Phase.SUCCEEDED}"
    if _claim(other) != desired.manifests.checkpoint_claim:
        return (
            f"keeps its checkpoints on claim {_claim(other)}; set spec.checkpoint.volume.claimName to it, "
            f"not to {desired.manifests.checkpoint_claim}"
        )
    engine, own = _engine(spec, status), desired.run.resolved.engine
    if engine != own:
        return f"is run by engine {engine}, whose checkpoints engine {own} does not load; name one of its own"
    contract = (status.get("checkpoint") or {}).get("contract")
    if (status.get("checkpoint") or {}).get("iteration") is None or contract is None:
        return "reports no checkpoint; name one that has saved"
    if SHARDED in contract:
        return f"has saved with spec.{SHARDED}, whose checkpoints only its own run loads; name one without it"
    return _difference(contract, desired.contract, _ARCHITECTURE, "a model") or _adapters(contract, desired)


def _adapters(theirs: Mapping[str, str], desired: DesiredState) -> str | None:
    """Why a run cannot start with the other one's adapters, which it trains on, or merges to train all."""
    kind, resolved = theirs.get(f"{_PEFT}type"), desired.run.resolved
    peft = resolved.peft
    if kind is None or (peft is None and kind == "lora"):
        return None
    if peft is None:
        return f"has saved adapters of type {kind}, which are not merged; name it in a recipe of mode lora"
    if (different := _difference(theirs, desired.contract, _PEFT, "adapters")) is not None:
        return f"{different}, or export it and set init.from.huggingFace.path to the folder"
    before, own = theirs.get(_TENSORS), desired.contract[_TENSORS]
    if fixes_tensor_parallelism(peft, resolved.model) and before != own:
        return (
            f"has saved DoRA of linear_fc1 at TP {before}, which Megatron-Bridge does not load at {own}; "
            f"set spec.{_TENSORS} to {before}"
        )
    return None


def _difference(theirs: Mapping[str, str], own: Mapping[str, str], section: str, what: str) -> str | None:
    """The first setting of a section of both contracts that differs."""
    paths = {path for path in theirs.keys() | own.keys() if path.startswith(section)}
    for path in sorted(paths):
        if theirs.get(path) != own.get(path):
            return (
                f"has trained {what} with spec.{path} {theirs.get(path, 'not set')}, and this recipe has "
                f"{own.get(path, 'none')}; set it to the same"
            )
    return None


def _claim(recipe: Mapping[str, Any]) -> str:
    volume = ((recipe["spec"].get("checkpoint") or {}).get("volume")) or {}
    return volume.get("claimName") or f"{object_name(recipe['metadata']['name'])}-checkpoints"


@cache
def _catalog() -> catalog.Catalog:
    return catalog.load()


def _engine(spec: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """The engine of a recipe.

    Where its status is too old to have it: that of its entry in the operator's catalog. Of an entry of the
    user's own it is not known here: bridge then needed the folder of a model in most runs, and an import for
    the own loop names its model.
    """
    if known := (status.get("plan") or {}).get("engine"):
        return str(known)
    if (entry := spec.get("recipe")) is not None:
        with contextlib.suppress(InvalidRecipeError):
            return _catalog().get(str(entry)).engine
    init = spec.get("init") or {}
    imports = (init.get("from") or {}).get("huggingFace")
    by_bridge = init.get("modelFolder") or (imports and not (status.get("imported") or {}).get("model"))
    return "bridge" if by_bridge else "megatron"
