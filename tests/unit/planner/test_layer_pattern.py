"""`moeLayerFreq` and `windowAttnSkipFreq`: Megatron's documented forms are read, Python is not."""

import pytest
from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.model import ModelSpec
from megatron_operator.planner.estimate.layer_pattern import moe_pattern, window_pattern
from megatron_operator.planner.estimate.model_shape import model_shape

MOE = {
    "numLayers": 4,
    "hiddenSize": 64,
    "ffnHiddenSize": 256,
    "numAttentionHeads": 8,
    "vocabSize": 128,
    "maxPositionEmbeddings": 128,
    "numExperts": 8,
}

INVALID = {
    "zero": "0",
    "too few layers": "[0]*3",
    "open bracket": "[0,1",
    "call": "__import__('os')",
    "too many layers": "[1]*10**9",
    "string": "'a'",
    "empty": "",
    "True is a Python integer": "True",
    "list of True": "[True]*4",
    "number above one": "[2]*4",
    "5,000 terms": "+".join(["[1]"] * 5000),
    "257 terms": "+".join(["[1]*0"] * 257),
    "4,000 digits": "[1]*" + "9" * 4000,
    "number of 4,000 digits": "9" * 4000,
    "number of 5,000 digits": "9" * 5000,
    "1,000 brackets": "(" * 1000 + "[1]*4" + ")" * 1000,
    "repeated growth": "[1]*9999*9999*9999",
    "spaces, which Megatron rejects in a list": "[1] * 4",
    "leading zero, which Python rejects": "[1]*04",
    "digits of another script": "[1]*٤",
    "negative factor": "[1]*-1",
    "NUL": "[1]*4\0",
    "lone surrogate": "\ud800",
    "factor first": "4*[1]",
    "rest after the list": "[1]*4]",
    "trailing comma": "[1,1,1,1,]",
}


@pytest.mark.parametrize(
    ("freq", "pattern"),
    [
        (None, "1111"),
        ("2", "1010"),
        ("[0,1]*2", "0101"),
        ("([0]*1+[1]*3)", "0111"),
        ("[1,0]+[0]+[1]", "1001"),
        ("([1]*1+[0]*1)*2", "1010"),
    ],
)
def test_moe_layer_freq_is_parsed_as_in_megatron(freq: str | None, pattern: str) -> None:
    assert "".join(str(int(is_moe)) for is_moe in moe_pattern(freq, 4)) == pattern


@pytest.mark.parametrize(("freq", "pattern"), [(None, "1111"), ("2", "1010"), ("[0,1]*2", "0101")])
def test_window_attn_skip_freq_is_parsed_as_in_megatron(freq: str | None, pattern: str) -> None:
    assert "".join(str(int(windowed)) for windowed in window_pattern(freq, 4)) == pattern


@pytest.mark.parametrize("freq", INVALID.values(), ids=INVALID)
def test_an_invalid_pattern_is_reported_with_its_field_and_a_short_value(freq: str) -> None:
    found = Diagnostics()
    # As it would arrive without the schema's bound on its length.
    model = ModelSpec.model_validate(MOE).model_copy(update={"moe_layer_freq": freq})
    assert model_shape(model, found) is None
    (error,) = found.errors
    assert error.field == "spec.model.moeLayerFreq"
    assert error.fix.startswith("set a number, or a list of 4 values")
    assert len(error.message) < 250
    error.message.encode()
