"""Categories of time differ by colour, light and dark."""

import itertools
import re

import pytest
from megatron_operator.api.recovery_status import LostSeconds
from megatron_operator.lifecycle.time_ledger import CATEGORIES
from megatron_operator.ui.rendering import FOLDER

STYLE = (FOLDER / "static" / "style.css").read_text()
SHOWN = sorted({*CATEGORIES, *LostSeconds.model_fields})
THEMES = dict(zip(("light", "dark"), re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL), strict=True))


def colours(theme: str) -> dict[str, tuple[float, ...]]:
    """Linear red, green and blue of each variable, 0 to 1."""
    found = re.findall(r"--([\w-]+): #([0-9a-f]{6})", THEMES[theme])
    return {
        name: tuple(_linear(int(code[at : at + 2], 16) / 255) for at in (0, 2, 4)) for name, code in found
    }


def _linear(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4


def luminance(colour: tuple[float, ...]) -> float:
    return sum(part * weight for part, weight in zip(colour, (0.2126, 0.7152, 0.0722), strict=True))


def lab(colour: tuple[float, ...]) -> tuple[float, float, float]:
    """CIE L*a*b* with the white point D65."""
    red, green, blue = colour
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883
    f = [
        part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in (x, luminance(colour), z)
    ]
    return 116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])


@pytest.mark.parametrize("theme", THEMES)
def test_no_two_categories_of_time_have_nearly_the_same_colour(theme: str) -> None:
    """A difference (CIE76) of 20 is seen at a glance."""
    found = colours(theme)
    for one, other in itertools.combinations(SHOWN, 2):
        pairs = zip(lab(found[one]), lab(found[other]), strict=True)
        assert sum((a - b) ** 2 for a, b in pairs) ** 0.5 >= 20, (one, other)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", SHOWN)
def test_a_category_of_time_is_seen_on_the_bar(theme: str, name: str) -> None:
    """WCAG 2.1, 1.4.11: 3:1 for graphics."""
    found = colours(theme)
    low, high = sorted((luminance(found[name]), luminance(found["panel"])))
    assert (high + 0.05) / (low + 0.05) >= 3
    assert f".part-{name} {{ fill: var(--{name}); }}" in STYLE
