"""Facts that the metadata of a Kubernetes object holds."""

from collections.abc import Mapping
from typing import Any

from megatron_operator.api.labels import ANNOTATION_HASH

Object = dict[str, Any]
"""A Kubernetes object as JSON."""


def content_hash(obj: Mapping[str, Any]) -> str | None:
    """Hash of the manifest that the object was made from; None when the operator did not make it."""
    annotation = (obj["metadata"].get("annotations") or {}).get(ANNOTATION_HASH)
    return str(annotation) if annotation else None


def owned_by(obj: Mapping[str, Any], uid: str) -> bool:
    """Whether the object with this UID is one of the owners."""
    return any(owner.get("uid") == uid for owner in obj["metadata"].get("ownerReferences") or [])


def is_deleting(obj: Mapping[str, Any]) -> bool:
    """Whether the object's deletion has been requested."""
    return obj["metadata"].get("deletionTimestamp") is not None
