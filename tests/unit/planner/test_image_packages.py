"""Settings that need a package which the project's image for GPUs lacks are refused without another image."""

from typing import Any

import pytest

from tests.unit.planner.conftest import Resolve
from tests.unit.planner.planning_errors import errors

FUSED_OFF = {"no-persist-layer-norm": True, "no-masked-softmax-fusion": True}


@pytest.mark.parametrize(
    ("settings", "is_refused"),
    [
        ({}, True),
        ({"megatronArgs": FUSED_OFF}, True),
        ({"parallelism": {"sequenceParallel": False}}, True),
        ({"megatronArgs": FUSED_OFF, "parallelism": {"sequenceParallel": False}}, False),
        ({"megatronArgs": FUSED_OFF, "parallelism": {"tensorModelParallelSize": 1}}, False),
        ({"image": "own"}, False),
    ],
)
def test_local_layers_on_gpus_need_apex_or_none_of_its_kernels(
    resolve: Resolve, settings: dict[str, Any], is_refused: bool
) -> None:
    resolved = resolve("llama3.2-1b", 8, training={"transformerImpl": "local"}, **settings)
    refusal = (
        "spec.training.transformerImpl: local requires Apex, which the trainer image lacks; leave it out, or"
        " set megatronArgs no-persist-layer-norm and no-masked-softmax-fusion: true and"
        " parallelism.sequenceParallel: false"
    )
    assert errors(resolved) == ([refusal] if is_refused else [])
