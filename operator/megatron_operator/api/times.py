"""Times as the API writes them."""

from datetime import UTC, datetime


def timestamp(seconds: float) -> str:
    """RFC 3339 in UTC, whole seconds, as the API server writes."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(text: str | None) -> float | None:
    """The reverse; None for nothing."""
    return datetime.fromisoformat(text).timestamp() if text else None
