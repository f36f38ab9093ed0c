"""Where environment variables of a pod come from besides plain values: Secrets, ConfigMaps, the pod itself.

The fields are those of a Kubernetes container. The operator passes the references on and never reads a value.
"""

from typing import Annotated, Literal

from pydantic import Field

from megatron_operator.api.base import ApiModel
from megatron_operator.api.bounds import LONGEST_NAME, Name

KEY_PATTERN = r"^[-._a-zA-Z0-9]+$"
PREFIX_PATTERN = r"^[-._A-Za-z][-._A-Za-z0-9]*$"

Key = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME, pattern=KEY_PATTERN)]
ObjectName = Annotated[Name, Field(min_length=1)]


class KeyReference(ApiModel):
    """One key of a Secret or ConfigMap."""

    name: ObjectName
    """Name of the object, in the namespace of the recipe."""
    key: Key
    """Key whose value is used."""
    optional: bool = False
    """Start without the variable while object or key is missing; otherwise pods wait for it."""


class FieldReference(ApiModel):
    """A field of the pod."""

    field_path: Literal[
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.nodeName",
        "spec.serviceAccountName",
        "status.hostIP",
        "status.podIP",
    ]
    """Path of the field."""


class EnvVarSource(ApiModel):
    """Source of one variable: exactly one of the three."""

    secret_key_ref: KeyReference | None = None
    """A key of a Secret."""
    config_map_key_ref: KeyReference | None = None
    """A key of a ConfigMap."""
    field_ref: FieldReference | None = None
    """A field of the pod."""


class ObjectReference(ApiModel):
    """A Secret or ConfigMap."""

    name: ObjectName
    """Name of the object, in the namespace of the recipe."""
    optional: bool = False
    """Start without its variables while it is missing; otherwise pods wait for it."""


class EnvFromSource(ApiModel):
    """An object whose keys all become variables: either of the two."""

    prefix: Annotated[str, Field(max_length=LONGEST_NAME, pattern=PREFIX_PATTERN)] | None = None
    """Text in front of each name."""
    secret_ref: ObjectReference | None = None
    """A Secret."""
    config_map_ref: ObjectReference | None = None
    """A ConfigMap."""
