"""Timestamps of the Kubernetes API."""

from datetime import UTC, datetime


def timestamp(seconds: float) -> str:
    """Unix time in seconds -> RFC 3339 in UTC with whole seconds, as the API server writes it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(text: str | None) -> float | None:
    """RFC 3339 -> Unix time in seconds; None for None or an empty text."""
    return datetime.fromisoformat(text).timestamp() if text else None
