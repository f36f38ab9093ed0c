"""Property test: every spec has a consistent plan, or errors with fixes."""

from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.planner import megatron_arguments, plan_and_alternatives

SIZES = st.one_of(st.none(), st.sampled_from([1, 2, 3, 4, 5, 8, 16, 64]))


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """Recipes in full, most of them wrong somewhere."""
    heads = draw(st.sampled_from([1, 8, 12, 32, 64]))
    model: dict[str, Any] = {
        "numLayers": draw(st.integers(1, 130)),
        "hiddenSize": heads * draw(st.sampled_from([64, 128])),
        "numAttentionHeads": heads,
        "vocabSize": draw(st.integers(1, 300_000)),
        "swiglu": draw(st.booleans()),
        "disableBiasLinear": draw(st.booleans()),
        "positionEmbeddingType": draw(st.sampled_from(["rope", "learned_absolute"])),
    }
    if draw(st.booleans()):
        model["numQueryGroups"] = draw(st.sampled_from([g for g in (1, 2, 4, 8, 12) if heads % g == 0]))
    if draw(st.booleans()):
        model |= {
            "numExperts": draw(st.sampled_from([1, 8, 12, 64])),
            "moeFfnHiddenSize": 512,
            "moeRouterTopk": 1,
        }
    names = (
        "tensorModelParallelSize",
        "pipelineModelParallelSize",
        "contextParallelSize",
        "expertModelParallelSize",
        "expertTensorParallelSize",
        "numVirtualStagesPerPipelineRank",
        "decoderLastPipelineNumLayers",
    )
    parallelism = {name: size for name in names if (size := draw(SIZES)) is not None and draw(st.booleans())}
    return {
        "model": model,
        "parallelism": parallelism,
        "training": {
            "seqLength": draw(st.sampled_from([512, 1000, 8192, 131072])),
            "globalBatchSize": draw(st.sampled_from([1, 96, 512, 1536])),
            "lr": 1e-4,
            "trainIters": 100,
            "bf16": draw(st.booleans()),
        },
    }


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(spec=specs(), count=st.sampled_from([1, 2, 6, 8, 12, 16, 64, 1000, 1024]))
def test_every_spec_has_a_consistent_plan_or_errors_with_fixes(
    resolve: Any, spec: dict[str, Any], count: int
) -> None:
    resolved = resolve(None, count, **spec)
    try:
        p, alternatives = plan_and_alternatives(resolved)
    except InvalidRecipeError as refused:
        event("refused")
        for error in refused.errors:
            assert error.field.startswith("spec.")
            assert error.message
            assert error.fix
        return
    event("planned")
    assert p.world_size == count == p.nodes * p.per_node
    assert p.world_size == (
        p.tensor_model_parallel_size
        * p.pipeline_model_parallel_size
        * p.context_parallel_size
        * p.data_parallel_size
    )
    assert sum(p.stage_layers) == spec["model"]["numLayers"]
    assert len(p.stage_layers) == p.pipeline_model_parallel_size
    assert min(p.stage_layers) >= 1
    assert p.micro_batch_size * p.data_parallel_size * p.gradient_accumulation == p.global_batch_size
    assert p.per_node % p.tensor_model_parallel_size == 0
    for name, size in spec["parallelism"].items():
        if name.endswith("ParallelSize") and name != "expertTensorParallelSize":
            assert p.wire()[name] == size
    assert megatron_arguments(resolved, p, "run")
    if p.expected is not None:
        assert p.expected.step_seconds > 0
        assert 0 <= p.expected.bubble < 1
        assert 0 < p.expected.mfu < 1
    assert len(alternatives) <= 6


def test_the_strategy_generates_valid_and_invalid_specs(resolve: Any) -> None:
    asked = {"seqLength": 512, "globalBatchSize": 96, "lr": 1e-4, "trainIters": 100, "bf16": True}
    model = {"numLayers": 2, "hiddenSize": 512, "numAttentionHeads": 8, "vocabSize": 1000}
    assert plan_and_alternatives(resolve(None, 8, model=model, training=asked))[0].world_size == 8
    with pytest.raises(InvalidRecipeError):
        plan_and_alternatives(resolve(None, 12, model=model, training=asked))
