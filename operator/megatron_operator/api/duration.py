"""Durations as Kubernetes writes them (`10m`, `1h30m`, `90s`), or as a number of seconds."""

import re
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticKnownError

_PATTERN: Final = r"([0-9]+[hms])*[0-9]*[1-9][0-9]*[hms]([0-9]+[hms])*"
PATTERN: Final = f"^{_PATTERN}$"
"""What of Go's `time.ParseDuration` a recipe may use: whole hours, minutes and seconds, above zero."""
WORD_PATTERN: Final = f"^(auto|off|{_PATTERN})$"
"""The same, or a word instead."""
LONGEST_TEXT: Final = 20
"""Characters of a duration."""
LONGEST: Final = 100_000_000
"""Seconds."""
_UNITS: Final = {"h": 3600, "m": 60, "s": 1}


def seconds(text: str) -> int:
    """`1h30m` -> 5400, for a text that PATTERN matches."""
    return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"([0-9]+)([hms])", text))


def _parse(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if len(value) > LONGEST_TEXT or not re.fullmatch(PATTERN, value):
        raise PydanticKnownError("string_pattern_mismatch", {"pattern": PATTERN})
    return seconds(value)


def seconds_or_word(value: str) -> str:
    """`10m` -> `600s`, for a text that WORD_PATTERN matches; a word stays.

    Raises PydanticKnownError for more than LONGEST.
    """
    if value in ("auto", "off"):
        return value
    if (found := seconds(value)) > LONGEST:
        raise PydanticKnownError("less_than_equal", {"le": LONGEST})
    return f"{found}s"


Duration = Annotated[
    int,
    BeforeValidator(_parse),
    Field(ge=1, le=LONGEST),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "minimum": 1,
            "maximum": LONGEST,
            "pattern": PATTERN,
            "maxLength": LONGEST_TEXT,
        }
    ),
]
"""A number of seconds; in a recipe also a text such as `10m`. Up to three years."""
