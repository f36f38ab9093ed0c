"""What the values of a message may be: the caps, and how a value is fitted to them.

Writers and readers fit alike. What an honest trainer sends is cut, never refused for its size, whichever of
the two is older; what a hostile pod sends cannot grow in the reader.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final

MAX_PROGRESS_BYTES: Final = 256 << 10
"""The longest body of /progress that is read; a report with everything at its cap is shorter."""
MAX_TERMINATION_BYTES: Final = 4096
"""Bytes that the kubelet reads of a termination log."""
MAX_INCIDENTS: Final = 8
"""Number of incidents in a report: the newest."""
MAX_WARNINGS: Final = 8
"""Number of warnings in a report."""
MAX_STRAGGLERS: Final = 16
"""Number of slow ranks in a report."""
MAX_EVALUATIONS: Final = 40
"""Number of evaluations in a report."""
MAX_STAGES: Final = 128
"""Number of pipeline stages in a report."""
LONGEST_TEXT: Final = 1000
"""Characters of a cause or message."""
LONGEST_NAME: Final = 64
"""Characters of an identifier."""
LONGEST_TIMESTAMP: Final = 40
"""Characters of an RFC 3339 time."""
MOST_ITERATIONS: Final = 100_000_000
"""Largest iteration that is believed: a damaged line must not reserve memory for as many as it names."""
LARGEST_COUNT: Final = 2**53
"""The largest integer that every JSON reader holds exactly."""
LATEST_TIME: Final = 253402300799.0
"""9999-12-31T23:59:59Z in Unix seconds."""
LONGEST_DURATION: Final = 1e11
"""Seconds, about 3000 years."""
LARGEST_RATE: Final = 1e18
"""Tokens, operations or bytes per second, in the unit of the field."""

_UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_IDENTIFIER: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*")


class Limit:
    """What the values of a field are limited to."""

    __slots__ = ()

    def fit(self, value: Any) -> Any:
        """The value within the limit; None if there is none near it."""
        return value

    def problem(self, value: Any) -> str | None:  # noqa: ARG002
        """Why a value that was read cannot be fitted; None if it can."""
        return None


@dataclass(frozen=True, slots=True)
class Range(Limit):
    """A number: beyond a bound it becomes the bound, NaN becomes None."""

    least: float
    most: float

    def fit(self, value: Any) -> Any:
        """See Limit."""
        if isinstance(value, float) and not math.isfinite(value):
            return None
        return type(value)(min(max(value, self.least), self.most))


@dataclass(frozen=True, slots=True)
class Text(Limit):
    """A text for people: cut, without characters that control a terminal or that UTF-8 cannot encode."""

    longest: int
    """Characters that are kept."""

    def fit(self, value: Any) -> Any:
        """See Limit."""
        return _UNPRINTABLE.sub("\ufffd", value[: self.longest])


@dataclass(frozen=True, slots=True)
class Identifier(Limit):
    """A CamelCase name; anything else becomes `default`."""

    default: str

    def fit(self, value: Any) -> Any:
        """See Limit."""
        return value if len(value) <= LONGEST_NAME and _IDENTIFIER.fullmatch(value) else self.default


@dataclass(frozen=True, slots=True)
class OneOf(Limit):
    """One of several names. Another one becomes `default`, or is refused where there is none."""

    names: tuple[str, ...]
    default: str | None = None

    def fit(self, value: Any) -> Any:
        """See Limit."""
        return self.default if self.default is not None and value not in self.names else value

    def problem(self, value: Any) -> str | None:
        """See Limit."""
        if self.default is not None or value in self.names:
            return None
        return f"expected one of {', '.join(self.names)}"


@dataclass(frozen=True, slots=True)
class Timestamp(Limit):
    """An RFC 3339 time."""

    def problem(self, value: Any) -> str | None:
        """See Limit."""
        try:
            known = len(value) <= LONGEST_TIMESTAMP and datetime.fromisoformat(value).tzinfo is not None
        except ValueError:
            known = False
        return None if known else "expected an RFC 3339 time"


@dataclass(frozen=True, slots=True)
class Items(Limit):
    """A list: the first `most` items, or the last."""

    most: int
    newest: bool = False

    def fit(self, value: Sequence[Any]) -> Any:
        """See Limit."""
        return value[-self.most :] if self.newest else value[: self.most]


Count = Annotated[int, Range(0, LARGEST_COUNT)]
Bytes = Count
Seconds = Annotated[float, Range(0.0, LONGEST_DURATION)]
UnixTime = Annotated[float, Range(0.0, LATEST_TIME)]
Finite = Annotated[float, Range(-1e300, 1e300)]
Rate = Annotated[float, Range(0.0, LARGEST_RATE)]
LongText = Annotated[str, Text(LONGEST_TEXT)]
Time = Annotated[str, Timestamp()]


def cut_to_json(text: str, most: int) -> str:
    """The longest beginning of a text whose JSON has at most `most` bytes of UTF-8, without the quotes."""
    size = 0
    for index, character in enumerate(text[:most]):
        size += len(json.dumps(character, ensure_ascii=False).encode(errors="replace")) - 2
        if size > most:
            return text[:index]
    return text[:most]
