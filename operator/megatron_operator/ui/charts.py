"""Charts as SVG, drawn on the server: no script, colours from the style sheet, readable on a phone."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup, escape

WIDTH: Final = 400
HEIGHT: Final = 210
MAX_POINTS: Final = 300
"""Points of a line; of more, the lowest and the highest of each stretch are kept."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 18, 24
_TICKS: Final = 4

Pair = tuple[float, float]
_Scale = Callable[[Pair], tuple[float, float]]
"""Pair -> position in the drawing."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line: pairs of iteration and value, in order."""

    name: str
    pairs: tuple[Pair, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """An incident at an iteration."""

    iteration: float
    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a bar, in the unit of the whole."""

    name: str
    value: float


def line_chart(
    title: str,
    unit: str,
    lines: Sequence[Line],
    marks: Sequence[Mark] = (),
    *,
    expected: float | None = None,
    percent: bool = False,
) -> Markup:
    """Values over iterations, with incidents as numbered vertical lines and the plan's value as a dashed one.

    `unit` is that of the values and of `expected`, the plan's value. Empty where no line has a point.
    """
    drawn = [Line(line.name, thinned(_finite(line.pairs))) for line in lines]
    values = [value for line in drawn for _, value in line.pairs]
    if not values:
        return Markup("")
    if expected is not None:
        values.append(expected)
    xs = [x for line in drawn for x, _ in line.pairs]
    low, high = _padded(min(values), max(values))
    first = min(xs)
    last = max(first + 1, *xs)

    def at(pair: Pair) -> tuple[float, float]:
        x = _LEFT + (pair[0] - first) / (last - first) * (WIDTH - _LEFT - _RIGHT)
        return x, HEIGHT - _BOTTOM - (pair[1] - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM)

    parts = [Markup("<title>{}</title>").format(_summary(title, unit, lines, percent=percent))]
    parts += _axes(low, high, first, last, at, percent=percent)
    if expected is not None:
        y = at((first, expected))[1]
        parts.append(_segment("plan", _LEFT, y, WIDTH - _RIGHT, y))
        parts.append(_text("plan-label", WIDTH - _RIGHT, y - 3, "plan", "end"))
    for mark in marks:
        if first <= mark.iteration <= last:
            parts.append(_mark(mark, at((mark.iteration, low))[0]))
    parts += [_line(line, at, number) for number, line in enumerate(drawn) if line.pairs]
    head = Markup('<svg class="chart" viewBox="0 0 {} {}" role="img">').format(WIDTH, HEIGHT)
    return head + Markup("").join(parts) + Markup("</svg>")


def bar(parts: Sequence[Part], whole: float, label: str) -> Markup:
    """Parts of `whole`, in one unit, from left to right; the class of a part is `part-` and its name."""
    drawn, x = [], 0.0
    for part in parts:
        if part.value <= 0 or whole <= 0 or not math.isfinite(part.value):
            continue
        width = min(100.0 - x, part.value / whole * 100)
        template = (
            '<rect class="part-{}" x="{:.3f}" y="0" width="{:.3f}" height="10"><title>{}</title></rect>'
        )
        drawn.append(Markup(template).format(part.name, x, max(width - 0.3, 0.15), part.name))
        x += width
    head = Markup(
        '<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" role="img"><title>{}</title>'
    )
    return head.format(label) + Markup("").join(drawn) + Markup("</svg>")


def thinned(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """At most MAX_POINTS pairs: the first, the last, and of each stretch between the lowest and the highest.

    So spikes stay visible, and charts of the same iterations have the same axis.
    """
    if len(pairs) <= MAX_POINTS:
        return tuple(pairs)
    inner = pairs[1:-1]
    stretch = math.ceil(len(inner) / (MAX_POINTS // 2 - 1))
    kept: list[Pair] = []
    for start in range(0, len(inner), stretch):
        some = inner[start : start + stretch]
        ends = {min(some, key=lambda pair: pair[1]), max(some, key=lambda pair: pair[1])}
        kept += sorted(ends)
    return (pairs[0], *kept, pairs[-1])


def short(value: float, *, percent: bool = False) -> str:
    """A number in few characters: `2.31`, `283k`, `1.2M`, `3e-04`, `43.1%`."""
    if percent:
        return f"{value:.1%}"
    if 0 < abs(value) < 1e-3:
        return f"{value:.1e}"
    rounded = float(f"{value:.3g}")
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(rounded) >= limit:
            return f"{rounded / limit:.3g}{unit}"
    return f"{rounded:.3g}"


def _finite(pairs: Sequence[Pair]) -> list[Pair]:
    return [pair for pair in pairs if all(map(math.isfinite, pair))]


def _padded(low: float, high: float) -> tuple[float, float]:
    room = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
    return (max(0.0, low - room) if low >= 0 else low - room), high + room


def _summary(title: str, unit: str, lines: Sequence[Line], *, percent: bool) -> str:
    found = []
    for line in lines:
        pairs = _finite(line.pairs)
        if pairs:
            values = [value for _, value in pairs]
            text = [short(each, percent=percent) for each in (pairs[-1][1], min(values), max(values))]
            name = f"{line.name}: " if len(lines) > 1 else ""
            found.append(
                f"{name}{text[0]} at iteration {pairs[-1][0]:.0f}, lowest {text[1]}, highest {text[2]}"
            )
    unit_text = f" in {unit}" if unit else ""
    return f"{title}{unit_text} over iterations; {'; '.join(found)}"


def _axes(low: float, high: float, first: float, last: float, at: _Scale, *, percent: bool) -> list[Markup]:
    parts = []
    for value in _ticks(low, high):
        y = at((first, value))[1]
        parts.append(_segment("grid", _LEFT, y, WIDTH - _RIGHT, y))
        parts.append(_text("tick", _LEFT - 5, y + 4, short(value, percent=percent), "end"))
    middle = (first + last) / 2
    for x, anchor, name in ((first, "start", ""), (middle, "middle", "iteration "), (last, "end", "")):
        parts.append(_text("tick", at((x, low))[0], HEIGHT - 8, f"{name}{x:,.0f}", anchor))
    return parts


def _ticks(low: float, high: float) -> list[float]:
    """Round values within the limits, about _TICKS of them."""
    rough = (high - low) / _TICKS
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough * 0.999)
    return [n * step for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _mark(mark: Mark, x: float) -> Markup:
    line = _segment("incident", x, _TOP, x, HEIGHT - _BOTTOM)
    label = _text("incident-label", x, _TOP - 5, mark.label, "middle")
    return Markup("<g><title>{}</title>{}{}</g>").format(mark.text, line, label)


def _line(line: Line, at: _Scale, number: int) -> Markup:
    points = [at(pair) for pair in line.pairs]
    if len(points) == 1:
        x, y = points[0]
        return Markup('<circle class="dot-{}" cx="{:.1f}" cy="{:.1f}" r="3"/>').format(number, x, y)
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return Markup('<polyline class="line-{}" points="{}"/>').format(number, path)


def _segment(kind: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    template = '<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>'
    return Markup(template).format(kind, x1, y1, x2, y2)


def _text(kind: str, x: float, y: float, text: str, anchor: str) -> Markup:
    template = '<text class="{}" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>'
    return Markup(template).format(kind, x, y, anchor, escape(text))
