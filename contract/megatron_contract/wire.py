"""JSON <-> dataclasses: camelCase on the wire, types checked on arrival."""

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Self, Union, get_args, get_origin, get_type_hints


class WireError(ValueError):
    """A message that does not have the type that the contract gives it. Names the field and the value."""


def camel_case(name: str) -> str:
    """`tokens_per_second` -> `tokensPerSecond`."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


class Message:
    """Base of all messages. Subclasses are frozen dataclasses."""

    def to_json(self) -> dict[str, Any]:
        """The message as a JSON object; unknown values are null."""
        return {camel_case(name): _encode(getattr(self, name)) for name in _types(type(self))}

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Parse a JSON object. Unknown fields are ignored, so that an older reader accepts a newer writer.

        Raises WireError when a value has another type than the field, or a required field is missing.
        """
        decoded = _decode_message(cls, value, cls.__name__)
        assert isinstance(decoded, cls)
        return decoded


_known_types: dict[type, dict[str, Any]] = {}


def _types(message: Any) -> dict[str, Any]:
    if message not in _known_types:
        hints = get_type_hints(message)
        _known_types[message] = {field.name: hints[field.name] for field in fields(message)}
    return _known_types[message]


def _encode(value: Any) -> Any:
    if isinstance(value, Message):
        return value.to_json()
    if isinstance(value, tuple):
        return [_encode(each) for each in value]
    return value


def _decode_message(message: type, value: object, at: str) -> Any:
    if not isinstance(value, Mapping):
        raise WireError(f"{at}: expected an object, got {value!r:.60}")
    known = {
        name: _decode(kind, value[camel_case(name)], f"{at}.{camel_case(name)}")
        for name, kind in _types(message).items()
        if camel_case(name) in value
    }
    try:
        return message(**known)
    except TypeError as error:
        raise WireError(f"{at}: {error}") from None


def _decode(kind: Any, value: object, at: str) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        if value is None and type(None) in get_args(kind):
            return None
        (kind,) = (each for each in get_args(kind) if each is not type(None))
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise WireError(f"{at}: expected a list, got {value!r:.60}")
        item = get_args(kind)[0]
        return tuple(_decode(item, each, f"{at}[{index}]") for index, each in enumerate(value))
    if is_dataclass(kind) and isinstance(kind, type):
        return _decode_message(kind, value, at)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    raise WireError(f"{at}: expected {kind.__name__}, got {value!r:.60}")
