"""Whether a run can start from the weights of another recipe (`init.from.recipe`)."""

import contextlib
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from megatron_operator import catalog
from megatron_operator.api.conditions import Phase
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.reasons import Reason
from megatron_operator.lifecycle.actions import LATER
from megatron_operator.lifecycle.desired import DesiredState
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.ownership import Obstacle
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.manifests.metadata import object_name

_FIELD: Final = "spec.init.from.recipe"
_ARCHITECTURE: Final = "model."


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
    if any(path.startswith("peft.") for path in contract):
        return "has saved adapters only; export it, and set init.from.huggingFace.path to the folder"
    return _difference(contract, desired.contract)


def _difference(theirs: Mapping[str, str], own: Mapping[str, str]) -> str | None:
    paths = {path for path in theirs.keys() | own.keys() if path.startswith(_ARCHITECTURE)}
    for path in sorted(paths):
        if theirs.get(path) != own.get(path):
            return (
                f"has trained a model with spec.{path} {theirs.get(path, 'not set')}, and this recipe has "
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
