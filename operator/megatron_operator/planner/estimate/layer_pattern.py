"""Patterns over layers: Megatron's `--moe-layer-freq` and `--window-attn-skip-freq`, and the ratios of
DeepSeek-V4's compressed attention (`csa_compress_ratios`).

Megatron evaluates a list as Python. This grammar accepts the documented forms and no others, and each step is
bounded, because the text comes from a recipe:

    pattern := NUMBER | sum
    sum     := product ("+" product)*
    product := list ("*" NUMBER)*
    list    := "[" VALUE ("," VALUE)* "]" | "(" sum ")"
"""

import re
from typing import Final

LONGEST_TEXT: Final = 4096
"""Characters of a pattern: enough for one written digit for each of 2,000 layers."""
MOST_LAYERS: Final = 10_000
"""Values of a list that are read at most."""
MOST_TERMS: Final = 256
"""Number of lists in a pattern that are read at most: Python, which evaluates it in Megatron, limits the
depth of an expression."""
DEEPEST: Final = 16
"""Levels of nested brackets that are read at most."""

_TOKEN: Final = re.compile(r"[0-9]+|[][()+*,]")
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,5}")
_NEITHER: Final = "it is neither a number nor a list of 0 and 1 such as ([0]*3+[1]*58)"


def moe_pattern(freq: str | None, layers: int) -> tuple[bool, ...]:
    """`--moe-layer-freq` as one boolean per layer.

    A number n makes every n-th layer, beginning with the first, a mixture of experts. A list of 0 and 1,
    built with `+` and `*`, gives each layer. Raises ValueError for anything else.
    """
    value = _pattern("1" if freq is None else freq, layers)
    if isinstance(value, int):
        return tuple(i % value == 0 for i in range(layers))
    return value


def window_pattern(freq: str | None, layers: int) -> tuple[bool, ...]:
    """`--window-attn-skip-freq` as one boolean per layer: whether it is windowed.

    Without it all layers are; a number n excludes every n-th layer; a list gives each layer. Raises
    ValueError for anything else.
    """
    if freq is None:
        return (True,) * layers
    value = _pattern(freq, layers)
    if isinstance(value, int):
        return tuple((i + 1) % value != 0 for i in range(layers))
    return value


def ratio_pattern(text: str, layers: int) -> tuple[int, ...]:
    """`csa_compress_ratios` as one ratio per layer: 0 (a window alone), 4 or 128. Raises ValueError for
    anything else."""
    return _listed(text, layers, ("0", "4", "128"))


def _pattern(text: str, layers: int) -> int | tuple[bool, ...]:
    if _NUMBER.fullmatch(text):
        number = int(text)
        if number < 1:
            raise ValueError(f"{number} is below 1")
        return number
    return tuple(value == 1 for value in _listed(text, layers, ("0", "1")))


def _listed(text: str, layers: int, values: tuple[str, ...]) -> tuple[int, ...]:
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"it has {len(text)} characters, at most {LONGEST_TEXT} are read")
    value = _Reader(text, values).read()
    if len(value) != layers:
        raise ValueError(f"it lists {len(value)} layers, the model has {layers}")
    return tuple(value)


class _Reader:
    """A recursive-descent reader of one list. `read` raises ValueError for a text outside of the grammar."""

    def __init__(self, text: str, values: tuple[str, ...]) -> None:
        self._values = values
        self._invalid = _NEITHER if values == ("0", "1") else f"it is no list of {', '.join(values)}"
        self._words: list[str] = _TOKEN.findall(text)
        if "".join(self._words) != text:
            raise ValueError(self._invalid)
        self._next = 0
        self._terms = 0

    def read(self) -> list[int]:
        value = self._sum(0)
        if self._peek():
            raise ValueError(self._invalid)
        return value

    def _peek(self) -> str:
        return self._words[self._next] if self._next < len(self._words) else ""

    def _accept(self, *words: str) -> bool:
        found = self._peek() in words
        self._next += found
        return found

    def _expect(self, *words: str) -> str:
        if not self._accept(*words):
            raise ValueError(self._invalid)
        return self._words[self._next - 1]

    def _sum(self, depth: int) -> list[int]:
        value = self._product(depth)
        while self._accept("+"):
            value = _bounded(value, self._product(depth))
        return value

    def _product(self, depth: int) -> list[int]:
        value = self._list(depth)
        while self._accept("*"):
            factor = self._peek()
            if not _NUMBER.fullmatch(factor):
                raise ValueError(self._invalid if not factor.isdigit() else "a factor has more than 6 digits")
            self._next += 1
            if len(value) * int(factor) > MOST_LAYERS:
                raise ValueError(f"it lists more than {MOST_LAYERS} layers")
            value *= int(factor)
        return value

    def _list(self, depth: int) -> list[int]:
        self._terms += 1
        if self._terms > MOST_TERMS or depth > DEEPEST:
            raise ValueError(f"it has more than {MOST_TERMS} lists, or more than {DEEPEST} nested brackets")
        if self._accept("("):
            value = self._sum(depth + 1)
            self._expect(")")
            return value
        self._expect("[")
        value = [int(self._expect(*self._values))]
        while self._accept(","):
            value.append(int(self._expect(*self._values)))
        self._expect("]")
        return value


def _bounded(first: list[int], second: list[int]) -> list[int]:
    if len(first) + len(second) > MOST_LAYERS:
        raise ValueError(f"it lists more than {MOST_LAYERS} layers")
    return first + second
