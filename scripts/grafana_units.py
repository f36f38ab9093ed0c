"""Values as Grafana writes them, for the units that the dashboard uses (`valueFormats` of @grafana/data)."""

from collections.abc import Callable
from typing import Final


def scaled(factor: float, names: tuple[str, ...]) -> Callable[[float], str]:
    """A value with the largest of units that are `factor` times each other."""

    def write(value: float) -> str:
        number = 0
        while abs(value) >= factor and number < len(names) - 1:
            value, number = value / factor, number + 1
        return f"{value:.3g}{names[number]}"

    return write


def duration(seconds: float) -> str:
    """Seconds in the largest unit of time of which there is one at least."""
    size = abs(seconds)
    if 0 < size < 1:
        return f"{seconds * 1000:.3g} ms"
    for limit, length, name in (
        (60, 1, "s"),
        (3600, 60, "mins"),
        (86_400, 3600, "hours"),
        (604_800, 86_400, "days"),
    ):
        if size < limit:
            return f"{seconds / length:.3g} {name}"
    return f"{seconds / 604_800:.3g} weeks"


UNITS: Final[dict[str, Callable[[float], str]]] = {
    "none": lambda value: f"{value:.4g}",
    "short": scaled(1000.0, ("", " K", " Mil", " Bil", " Tri")),
    "percentunit": lambda value: f"{value * 100:.3g}%",
    "s": duration,
    "sci": lambda value: "0" if value == 0 else f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e+"),
    "ops": lambda value: f"{scaled(1000.0, ('', 'K', 'M'))(value)} ops/s",
    "reqps": lambda value: f"{scaled(1000.0, ('', 'K', 'M'))(value)} req/s",
}
"""Unit of a panel -> a value in it; `suffix:X` is in `written`."""


def written(value: float, unit: str) -> str:
    """A value in a unit. Raises KeyError for a unit that the dashboard did not use so far."""
    if unit.startswith("suffix:"):
        return f"{value:.4g} {unit.removeprefix('suffix:')}"
    return UNITS[unit](value)
