"""Nulls in a recipe's file: a section whose lines are all commented out, or `suspend: null`."""

from collections.abc import Mapping
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from megatron_operator.api.base import ApiModel


def without_nulls(kind: Any, value: Any) -> Any:
    """A value of type `kind` without nulls of fields with a default, which the API server sets instead."""
    if isinstance(kind, type) and issubclass(kind, ApiModel):
        return _fields_without_nulls(kind, value) if isinstance(value, Mapping) else value
    arguments, origin = get_args(kind), get_origin(kind)
    if origin is list:
        return [without_nulls(arguments[0], each) for each in value] if isinstance(value, list) else value
    if origin is dict:
        if not isinstance(value, Mapping):
            return value
        return {key: without_nulls(arguments[1], each) for key, each in value.items()}
    for branch in arguments:  # Of a union, or an annotated type and its bounds.
        value = without_nulls(branch, value)
    return value


def _fields_without_nulls(model: type[ApiModel], value: Mapping[str, Any]) -> dict[str, Any]:
    fields = {info.alias or name: info for name, info in model.model_fields.items()}
    return {
        key: without_nulls(fields[key].annotation, child) if key in fields else child
        for key, child in value.items()
        if child is not None or key not in fields or not _has_default(fields[key])
    }


def _has_default(field: FieldInfo) -> bool:
    """Whether the CRD has a default of the field; that of a factory is the operator's own."""
    return field.default is not None and field.default is not PydanticUndefined
