"""Divisors, found in a time that grows with the square root of a number, and the fix that names some."""

import math


def divisors(number: int, most: int | None = None) -> list[int]:
    """All divisors of a positive number in order, or those up to `most`."""
    limit = number if most is None else most
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    large = [number // d for d in reversed(small) if d * d != number]
    return [d for d in (*small, *large) if d <= limit]


def set_one_of(sizes: list[int]) -> str:
    """The fix that names the first twelve of some sizes."""
    return f"set {'one of ' if len(sizes) > 1 else ''}{', '.join(map(str, sizes[:12]))}"
