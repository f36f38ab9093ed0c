"""Arithmetic on Kubernetes quantities (`64Gi`, `500m`), as far as pod resources need it.

`kubernetes.utils.parse_quantity` parses them too, and a test compares both. It is not used because importing
it takes 0.5 s of CPU time, nearly as long as `megatron render` takes in all.
"""

from fractions import Fraction

_FACTORS = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", start=1)},
}
_MEBI = 1024**2


def parse(text: str) -> Fraction:
    """`64Gi` -> bytes, `500m` -> cores, exactly. Raises ValueError or KeyError for an invalid quantity."""
    number = text.rstrip("numkKMGTPEi")
    return Fraction(number) * _FACTORS[text[len(number) :]]


def memory(size: Fraction) -> str:
    """Bytes as a quantity, rounded up to whole mebibytes."""
    mebi = -(-size // _MEBI)
    return f"{mebi // 1024}Gi" if mebi % 1024 == 0 else f"{mebi}Mi"


def cores(count: Fraction) -> str:
    """Cores as a quantity, rounded up to a thousandth."""
    milli = -(-count * 1000 // 1)
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli}m"
