"""JSON that Python's decoder refuses for its depth is read, and its deep parts are null."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from megatron_operator.api.json_documents import DEEPEST, ShallowDecoder, loads, without_deep_parts

DEEPER_THAN_PYTHON = 9_000
INTEGERS = st.integers(-(2**63), 2**63 - 1)
"""Those that an object of Kubernetes can have: the API server stores larger ones as floats."""
SCALARS = st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False) | st.text()
DOCUMENTS = st.recursive(SCALARS, lambda each: st.lists(each) | st.dictionaries(st.text(), each))


def nested(levels: int, opening: str, closing: str, inner: str) -> str:
    return opening * levels + inner + closing * levels


def depth(value: Any) -> int:
    """How many lists and objects are around the innermost value."""
    levels = 0
    while value:
        value = next(iter(value.values() if isinstance(value, dict) else value))
        levels += 1
    return levels


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a]": ', "}")])
def test_what_is_too_deep_is_null_and_the_rest_is_kept(opening: str, closing: str) -> None:
    deep = nested(DEEPER_THAN_PYTHON, opening, closing, "1")
    found = loads(f'{{"before": "[{{", "deep": {deep}, "after": ["\\"]"]}}')
    assert found["before"] == "[{"
    assert found["after"] == ['"]']
    assert depth(found["deep"]) == DEEPEST - 1


def test_bytes_are_read_too() -> None:
    assert depth(loads(nested(DEEPER_THAN_PYTHON, "[", "]", "").encode())) == DEEPEST


@pytest.mark.parametrize("text", ["[" * DEEPER_THAN_PYTHON, '{"a": "', "]", ""])
def test_what_is_no_json_is_the_decoders_error(text: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        loads(text)


@given(DOCUMENTS)
def test_documents_of_usual_depth_are_unchanged(document: Any) -> None:
    text = json.dumps(document)
    assert without_deep_parts(text) == text
    assert ShallowDecoder().decode(text) == document
