"""YAML as kubectl reads it; duplicate keys are an error, and the work is bounded."""

import pytest
from megatron_operator.api.yaml_documents import YamlError, load, load_all

ALIAS_BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("1.5", 1.5),
        ("yes", True),
        ("off", False),
        ("010", 8),
        ("0x1F", 31),
        ("-7", -7),
        ("0", 0),
        ("9223372036854775807", 2**63 - 1),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("null", None),
        ("", None),
        ("!!str 1", "1"),
    ],
)
def test_scalars_have_kubectls_types(text: str, value: object) -> None:
    assert load(text) == value


@pytest.mark.parametrize("text", ["{a: 1, a: 2}", "a: {b: 1, c: 2, b: 3}", "- {a: 1, a: 1}"])
def test_a_duplicate_key_is_an_error(text: str) -> None:
    with pytest.raises(YamlError, match="invalid YAML in line 1: duplicate key"):
        load(text)


def test_a_key_may_override_a_merged_one() -> None:
    assert load("base: &base {a: 1}\nuse: {<<: *base, a: 2}")["use"] == {"a": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    {
        "nesting that ended the process": ("[" * 100_000, "64 levels"),
        "nested maps": ("{a: " * 70 + "1" + "}" * 70, "64 levels"),
        "aliases that stand for a billion values": (ALIAS_BOMB, "more than 200000 values"),
        "alias that contains itself": ("a: &a {b: *a}", "in line 1: the alias 'a' contains itself"),
        "integer of 5,000 digits": (f"a: 1\nb: {'9' * 5000}", "in line 2: the integer '999"),
        "hexadecimal integer of 5,000 digits": (f"a: 0x{'f' * 5000}", "needs more than 64 bits"),
        "integer of 65 bits": ("a: 18446744073709551616", "needs more than 64 bits"),
        "exponent beyond floats": ("a: 1e999", "'1e999' is not a finite number"),
        "infinity": ("a: .inf", "'.inf' is not a finite number"),
        "tag of a Python object": ("!!python/object:os.system x", "unsupported tag"),
        "tag with an invalid value": ("a: !!timestamp 2020-99-99", "unsupported tag"),
        "key that is a number": ("1: a", "the key 1 is not a string; write it in quotes"),
        "key that is a boolean": ("on: a", "the key true is not a string"),
        "key that is a list": ("{[a]: b}", "unhashable key"),
        "unknown alias": ("a: *b", "undefined alias"),
        "NUL": ("a\0b", "not allowed"),
        "lone surrogate": ("a: \ud800", "Unicode"),
        "a file of 2 MiB": ("a" * (2 << 20), "at most 1048576"),
    }.values(),
)
def test_hostile_yaml_is_an_error_with_a_short_message(text: str, message: str) -> None:
    for read in (load, load_all):
        with pytest.raises(YamlError) as error:
            read(text)
        assert message in str(error.value)
        assert len(str(error.value)) < 300
