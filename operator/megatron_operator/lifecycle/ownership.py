"""Whether objects with the names that a recipe needs are the recipe's own. Anything else is never changed."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from megatron_operator.api.labels import KIND, LABEL_RECIPE
from megatron_operator.api.reasons import Reason
from megatron_operator.lifecycle.actions import LATER, SOON
from megatron_operator.lifecycle.object_metadata import content_hash, is_deleting, owned_by
from megatron_operator.lifecycle.status_builder import StatusBuilder


class Ownership(StrEnum):
    """Whose an object is."""

    OURS = "ours"
    """The recipe's: it has the recipe's label and an owner reference with its UID."""
    PREVIOUS = "previous"
    """Of an earlier recipe of the same name: garbage collection deletes it."""
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why an object cannot be used yet."""

    reason: Reason
    message: str
    after: float
    """Seconds until it is checked again."""


def ownership(obj: Mapping[str, Any], status: StatusBuilder, *, retainable: bool = False) -> Ownership:
    """Whose the object is. A `retainable` one outlives its recipe, so it may have no owner but the label."""
    labels = obj["metadata"].get("labels") or {}
    owners = obj["metadata"].get("ownerReferences") or []
    if labels.get(LABEL_RECIPE) == status.key.name:
        if owned_by(obj, status.uid) or (retainable and not owners):
            return Ownership.OURS
        if any((owner.get("kind"), owner.get("name")) == (KIND, status.key.name) for owner in owners):
            return Ownership.PREVIOUS
    return Ownership.FOREIGN


def belongs_to_recipe(obj: Mapping[str, Any]) -> bool:
    """Whether the operator made the object for a recipe, whichever that is: label and owner name the same."""
    recipe = (obj["metadata"].get("labels") or {}).get(LABEL_RECIPE)
    owners = obj["metadata"].get("ownerReferences") or []
    owned = any((owner.get("kind"), owner.get("name")) == (KIND, recipe) for owner in owners)
    return owned and content_hash(obj) is not None


def name_obstacle(
    status: StatusBuilder, kind: str, existing: Mapping[str, Any], fix: str, *, retainable: bool = False
) -> Obstacle | None:
    """Why a name that the recipe needs is not free; None where the object is its own.

    `fix` is what to do about an object of somebody else.
    """
    name, owner = existing["metadata"]["name"], ownership(existing, status, retainable=retainable)
    if owner is Ownership.OURS:
        return None
    if owner is Ownership.PREVIOUS:
        message = f"{kind} {name} of an earlier recipe is ending"
        return Obstacle(Reason.PREVIOUS_JOB_ENDING, message, SOON)
    message = f"{kind} {name} exists and is not this recipe's; {fix}"
    if is_deleting(existing):
        return Obstacle(Reason.NAME_TAKEN, f"{message} (it is being deleted)", SOON)
    return Obstacle(Reason.NAME_TAKEN, message, LATER)
