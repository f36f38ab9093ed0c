"""Timestamps of the Kubernetes API."""

import math
from datetime import UTC, datetime
from typing import Final

LATEST: Final = 253402300799.0
"""9999-12-31T23:59:59Z, the last second that RFC 3339 can express."""


def timestamp(seconds: float) -> str:
    """Unix time in seconds -> RFC 3339 in UTC with whole seconds, as the API server writes it.

    A time before 1970 becomes its first second and one after 9999 its last: what pods report is added to
    times, and must not raise. NaN becomes 1970.
    """
    known = 0.0 if math.isnan(seconds) else min(max(seconds, 0.0), LATEST)
    return datetime.fromtimestamp(known, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(seconds: float) -> str:
    """Unix time in seconds -> RFC 3339 in UTC with microseconds, as in a Lease."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def seconds(text: str | None) -> float | None:
    """RFC 3339 -> Unix time in seconds; None for None, and for a text that is no time."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()
