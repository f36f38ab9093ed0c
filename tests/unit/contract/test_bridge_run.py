"""The arguments of a Megatron-Bridge run."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from megatron_contract.bridge_run import BridgeRun

NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
PATHS = st.lists(NAMES, min_size=2, max_size=4).map(".".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(NAMES, st.dictionaries(PATHS, VALUES, max_size=5))
def test_what_is_written_as_arguments_is_read_back(function: str, overrides: dict[str, object]) -> None:
    run = BridgeRun(function, overrides)  # type: ignore[arg-type]
    assert BridgeRun.from_arguments(run.to_arguments()) == run


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "must be the name of a recipe function of Megatron-Bridge, but there is none"),
        (["train.train_iters=1"], "not 'train.train_iters=1'"),
        (["f", "--lr"], "'--lr' is not an override: write path=JSON"),
        (["f", "iterations=1"], "'iterations=1' is not an override"),
        (["f", "a.b=1", "a.b=2"], "a.b is given twice"),
        (["f", "checkpoint.save=/c"], 'a text is quoted: checkpoint.save="/c"'),
    ],
)
def test_an_argument_that_cannot_be_read_is_named(words: list[str], problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        BridgeRun.from_arguments(words)
