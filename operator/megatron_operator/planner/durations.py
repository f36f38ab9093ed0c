"""Durations as people read them."""

_UNITS = (("years", 365.25 * 86400), ("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0))


def duration(seconds: float) -> str:
    """The duration in its largest unit: `7.6 years`, `12.3 days`, `4.1 hours`, `38 s`."""
    for unit, length in _UNITS:
        if seconds >= length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.0f} s"
