"""Converts between JSON and dataclasses: camelCase on the wire, types checked when a message is parsed."""

import functools
import json
import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, NamedTuple, Self, Union, get_args, get_origin, get_type_hints

from megatron_contract.limits import Limit


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


@functools.cache
def camel_case(name: str) -> str:
    """`tokens_per_second` -> `tokensPerSecond`."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


class Message:
    """Base of all messages. Subclasses are frozen dataclasses.

    Field types: str, int, float, bool, another message, `tuple[T, ...]` of these, and `T | None`. Where one
    is annotated with a `limits.Limit`, a value is fitted to it when it is written and when it is read.
    """

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return the message as a JSON object; None becomes null."""
        message: Any = type(self)
        return {field.key: _encode(field.type, getattr(self, field.name)) for field in _fields_of(message)}

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Parse a JSON object. Unknown fields are ignored, so that an older reader accepts a newer writer.

        Raises WireError if a value has the wrong type or a required field is missing.
        """
        message: Self = _decode_message(cls, value, cls.__name__)
        return message


class _Type(NamedTuple):
    """A field's type, taken apart: an operator reads a hundred reports a second."""

    kind: Any
    """A scalar type, a message, or None for a list."""
    optional: bool
    limits: tuple[Limit, ...]
    is_message: bool
    item: "_Type | None" = None
    """Of a list."""


class _Field(NamedTuple):
    name: str
    key: str
    """On the wire."""
    type: _Type
    required: bool


@functools.cache
def _fields_of(message: Any) -> tuple[_Field, ...]:
    hints = get_type_hints(message, include_extras=True)
    return tuple(
        _Field(each.name, camel_case(each.name), _taken_apart(hints[each.name]), each.default is MISSING)
        for each in fields(message)
    )


def _taken_apart(expected: Any) -> _Type:
    known, optional = _without_none(expected)
    known, limits = _limits(known)
    if get_origin(known) is tuple:
        return _Type(None, optional, limits, False, _taken_apart(get_args(known)[0]))
    return _Type(known, optional, limits, is_dataclass(known))


def _without_none(expected: Any) -> tuple[Any, bool]:
    """`T | None` -> T, True; any other type -> itself, False."""
    if get_origin(expected) not in (Union, types.UnionType):
        return expected, False
    options = get_args(expected)
    (known,) = (option for option in options if option is not type(None))
    return known, len(options) > 1


def _limits(expected: Any) -> tuple[Any, tuple[Limit, ...]]:
    """`Annotated[T, limits]` -> T, limits."""
    if get_origin(expected) is not Annotated:
        return expected, ()
    known, *limits = get_args(expected)
    return known, tuple(limits)


def _encode(expected: _Type, value: Any) -> Any:
    if value is None:
        return None
    for limit in expected.limits:
        value = limit.fit(value)
    if isinstance(value, Message):
        return value.to_json()
    if isinstance(value, tuple) and expected.item is not None:
        return [_encode(expected.item, item) for item in value]
    return value


def _decode_message(message: Any, value: object, path: str) -> Any:
    if not isinstance(value, Mapping):
        raise WireError(f"{path}: expected an object, got {_shown(value)}")
    known = _fields_of(message)
    if missing := [field.key for field in known if field.required and field.key not in value]:
        raise WireError(f"{path}: missing {', '.join(missing)}")
    return message(
        **{
            field.name: _decode(field.type, value[field.key], f"{path}.{field.key}")
            for field in known
            if field.key in value
        }
    )


def _decode(expected: _Type, value: object, path: str) -> Any:
    if value is None and expected.optional:
        return None
    if expected.item is not None:
        return _decode_list(expected.item, expected.limits, value, path)
    if expected.is_message:
        return _decode_message(expected.kind, value, path)
    known = _decode_scalar(expected.kind, value, path)
    for limit in expected.limits:
        if problem := limit.problem(known):
            raise WireError(f"{path}: {problem}, got {_shown(value)}")
        known = limit.fit(known)
    if known is None and not expected.optional:
        raise WireError(f"{path}: expected a finite number, got {_shown(value)}")
    return known


def _decode_list(item: _Type, limits: tuple[Limit, ...], value: object, path: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise WireError(f"{path}: expected a list, got {_shown(value)}")
    items: Sequence[Any] = value
    for limit in limits:
        items = limit.fit(items)
    return tuple(_decode(item, each, f"{path}[{index}]") for index, each in enumerate(items))


def _decode_scalar(expected: Any, value: object, path: str) -> Any:
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, expected) and (expected is bool or not isinstance(value, bool)):
        return value
    raise WireError(f"{path}: expected {expected.__name__}, got {_shown(value)}")


def _shown(value: object) -> str:
    """The value for an error message. The text of a large or nested one would cost more than it is worth."""
    if isinstance(value, str):
        return ascii(value[:60])
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, list | Mapping) and value:
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    return f"{value!r:.60}"
