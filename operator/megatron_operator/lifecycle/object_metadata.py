"""Facts that Kubernetes objects of every kind hold: owners, deletion, conditions, times of Events."""

from collections.abc import Mapping
from typing import Any

from megatron_operator.api.labels import ANNOTATION_HASH

Object = dict[str, Any]
"""A Kubernetes object as JSON."""


def content_hash(obj: Mapping[str, Any]) -> str | None:
    """Hash of the manifest that the object was made from; None when the operator did not make it."""
    annotation = (obj["metadata"].get("annotations") or {}).get(ANNOTATION_HASH)
    return str(annotation) if annotation else None


def condition(obj: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The condition of this type; empty when the object has none."""
    conditions = (obj.get("status") or {}).get("conditions") or []
    return next((dict(each) for each in conditions if each.get("type") == kind), {})


def event_time(event: Mapping[str, Any]) -> str:
    """When an Event last happened, RFC 3339; empty when it has no time."""
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")


def owned_by(obj: Mapping[str, Any], uid: str) -> bool:
    """Whether the object with this UID is one of the owners."""
    return any(owner.get("uid") == uid for owner in obj["metadata"].get("ownerReferences") or [])


def is_deleting(obj: Mapping[str, Any]) -> bool:
    """Whether the object's deletion has been requested."""
    return obj["metadata"].get("deletionTimestamp") is not None
