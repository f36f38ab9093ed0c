"""Parsing and formatting of Kubernetes quantities."""

from fractions import Fraction

import pytest
from kubernetes.utils import parse_quantity
from megatron_operator.api import quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("500m", Fraction(1, 2)),
        ("1.5", Fraction(3, 2)),
        ("64Gi", 64 * 1024**3),
        ("2T", 2 * 10**12),
        ("3k", 3000),
        ("250u", Fraction(1, 4000)),
        ("1e3", 1000),
    ],
)
def test_quantities_are_parsed_exactly_and_as_by_the_client_library(text: str, value: Fraction) -> None:
    assert quantity.parse(text) == value
    assert Fraction(parse_quantity(text)) == value


@pytest.mark.parametrize(("size", "text"), [(1024**3, "1Gi"), (1024**3 + 1, "1025Mi"), (1, "1Mi")])
def test_memory_is_rounded_up(size: int, text: str) -> None:
    assert quantity.memory(Fraction(size)) == text


@pytest.mark.parametrize(("count", "text"), [(Fraction(12), "12"), (Fraction(1, 3), "334m")])
def test_cores_are_rounded_up(count: Fraction, text: str) -> None:
    assert quantity.cores(count) == text
