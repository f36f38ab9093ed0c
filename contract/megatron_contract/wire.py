"""Converts between JSON and dataclasses: camelCase on the wire, types checked when a message is parsed."""

import functools
import json
import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, Self, Union, get_args, get_origin, get_type_hints

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
        return {
            camel_case(name): _encode(expected, getattr(self, name))
            for name, expected in _field_types(type(self)).items()
        }

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
        hints = get_type_hints(message, include_extras=True)
        _known_types[message] = {field.name: hints[field.name] for field in fields(message)}
    return _known_types[message]


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


def _encode(expected: Any, value: Any) -> Any:
    expected, limits = _limits(_without_none(expected)[0])
    if value is None:
        return None
    for limit in limits:
        value = limit.fit(value)
    if isinstance(value, Message):
        return value.to_json()
    if isinstance(value, tuple):
        return [_encode(get_args(expected)[0], item) for item in value]
    return value


def _decode_message(message: Any, value: object, path: str) -> Any:
    if not isinstance(value, Mapping):
        raise WireError(f"{path}: expected an object, got {_shown(value)}")
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
    expected, optional = _without_none(expected)
    if value is None and optional:
        return None
    expected, limits = _limits(expected)
    if get_origin(expected) is tuple:
        return _decode_list(get_args(expected)[0], limits, value, path)
    if is_dataclass(expected):
        return _decode_message(expected, value, path)
    known = _decode_scalar(expected, value, path)
    for limit in limits:
        if problem := limit.problem(known):
            raise WireError(f"{path}: {problem}, got {_shown(value)}")
        known = limit.fit(known)
    if known is None and not optional:
        raise WireError(f"{path}: expected a finite number, got {_shown(value)}")
    return known


def _decode_list(item: Any, limits: tuple[Limit, ...], value: object, path: str) -> tuple[Any, ...]:
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
