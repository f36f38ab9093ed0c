"""Durations as Kubernetes writes them (`10m`, `1h30m`, `90s`), or as a number of seconds."""

import re
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticKnownError

PATTERN: Final = r"^([0-9]+[hms])+$"
"""What of Go's `time.ParseDuration` a recipe may use: whole hours, minutes and seconds."""
LONGEST_TEXT: Final = 20
"""Characters of a duration."""
_LONGEST: Final = 100_000_000
_UNITS: Final = {"h": 3600, "m": 60, "s": 1}


def seconds(text: str) -> int:
    """`1h30m` -> 5400. Raises ValueError for what is no duration."""
    if not re.fullmatch(PATTERN, text):
        raise ValueError(f"{text!r} is no duration")
    return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"([0-9]+)([hms])", text))


def _parse(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return seconds(value[: LONGEST_TEXT + 1])
    except ValueError:
        raise PydanticKnownError("string_pattern_mismatch", {"pattern": PATTERN}) from None


Duration = Annotated[
    int,
    BeforeValidator(_parse),
    Field(ge=1, le=_LONGEST),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "minimum": 1,
            "maximum": _LONGEST,
            "pattern": PATTERN,
            "maxLength": LONGEST_TEXT,
        }
    ),
]
"""A number of seconds; in a recipe also a text such as `10m`. Up to three years."""
