"""YAML as kubectl reads it, and duplicate keys as an error."""

import pytest
from megatron_operator.cli.documents import parse_value
from megatron_operator.cli.errors import CommandError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("1.5", 1.5),
        ("yes", True),
        ("off", False),
        ("010", 8),
        ("2026-01-01", "2026-01-01"),
        ("null", None),
    ],
)
def test_scalars_have_kubectls_types(text: str, value: object) -> None:
    assert parse_value(text) == value


@pytest.mark.parametrize("text", ["{a: 1, a: 2}", "a: {b: 1, c: 2, b: 3}", "- {a: 1, a: 1}"])
def test_a_duplicate_key_is_an_error(text: str) -> None:
    with pytest.raises(CommandError, match="--set: invalid YAML in line 1: duplicate key"):
        parse_value(text)


def test_a_key_may_override_a_merged_one() -> None:
    assert parse_value("base: &base {a: 1}\nuse: {<<: *base, a: 2}")["use"] == {"a": 2}
