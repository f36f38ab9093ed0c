"""Layers of Step-3.5 on two tensor-parallel ranks, beside transformers' model."""

import importlib.util
from pathlib import Path

import pytest

from testkit.weights.warm import WarmConverter

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None,
    reason="what Megatron-Bridge imports is not installed: run make bridge-training",
)


def test_heads_and_their_gates_are_split_with_the_logits_and_gradients_of_transformers(
    converter: WarmConverter, tmp_path: Path
) -> None:
    found = converter.prove_split(tmp_path)

    assert found["largest logit"] > 0.1
    assert found["logits"] < 1e-6
    # Of sums over 32 positions and the whole vocabulary.
    assert found["gradients"] < 1e-4 * found["least of the parts"]
