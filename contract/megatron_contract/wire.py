"""Converts between JSON and dataclasses: camelCase on the wire, types checked when a message is parsed."""

import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Self, Union, get_args, get_origin, get_type_hints


class WireError(ValueError):
    """A message does not match its contract. The text names the field and the value."""


def load_json(text: str | bytes) -> object:
    """Parse JSON from a writer that is not trusted. NaN and infinity, which JSON lacks, become None.

    Raises WireError, whatever the text is: torn, not UTF-8, nested too deep, a number of too many digits.
    """
    try:
        value: object = json.loads(text, parse_constant=lambda _: None)
    except RecursionError as error:
        raise WireError("not JSON: nested too deep") from error
    except ValueError as error:
        # The words of UnicodeDecodeError quote the whole text.
        raise WireError(f"not JSON: {str(error)[:100]}") from error
    return value


def camel_case(name: str) -> str:
    """`tokens_per_second` -> `tokensPerSecond`."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


class Message:
    """Base of all messages. Subclasses are frozen dataclasses.

    Field types: str, int, float, bool, another message, `tuple[T, ...]` of these, and `T | None`.
    """

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return the message as a JSON object; None becomes null."""
        return {camel_case(name): _encode(getattr(self, name)) for name in _field_types(type(self))}

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Parse a JSON object. Unknown fields are ignored, so that an older reader accepts a newer writer.

        Raises WireError if a value has the wrong type or a required field is missing.
        """
        message: Self = _decode_message(cls, value, cls.__name__)
        return message


_known_types: dict[Any, dict[str, Any]] = {}


def _field_types(message: Any) -> dict[str, Any]:
    """Types by field name; computed once for each class."""
    if message not in _known_types:
        hints = get_type_hints(message)
        _known_types[message] = {field.name: hints[field.name] for field in fields(message)}
    return _known_types[message]


def _encode(value: Any) -> Any:
    if isinstance(value, Message):
        return value.to_json()
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    return value


def _decode_message(message: Any, value: object, path: str) -> Any:
    if not isinstance(value, Mapping):
        raise WireError(f"{path}: expected an object, got {value!r:.60}")
    missing = [
        camel_case(field.name)
        for field in fields(message)
        if field.default is MISSING and camel_case(field.name) not in value
    ]
    if missing:
        raise WireError(f"{path}: missing {', '.join(missing)}")
    return message(
        **{
            name: _decode(expected, value[camel_case(name)], f"{path}.{camel_case(name)}")
            for name, expected in _field_types(message).items()
            if camel_case(name) in value
        }
    )


def _decode(expected: Any, value: object, path: str) -> Any:
    if get_origin(expected) in (Union, types.UnionType):
        if value is None and type(None) in get_args(expected):
            return None
        (expected,) = (option for option in get_args(expected) if option is not type(None))
    if get_origin(expected) is tuple:
        if not isinstance(value, list):
            raise WireError(f"{path}: expected a list, got {value!r:.60}")
        item_type = get_args(expected)[0]
        return tuple(_decode(item_type, item, f"{path}[{index}]") for index, item in enumerate(value))
    if is_dataclass(expected):
        return _decode_message(expected, value, path)
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, expected) and (expected is bool or not isinstance(value, bool)):
        return value
    raise WireError(f"{path}: expected {expected.__name__}, got {value!r:.60}")
