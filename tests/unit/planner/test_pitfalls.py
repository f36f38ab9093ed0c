"""Pitfalls are refused or warned of, in the words of their cause and mend."""

from typing import Any

import pytest
from megatron_operator.api.errors import Refused
from megatron_operator.planner import plan

MOE: dict[str, Any] = {
    "model": {
        "numLayers": 16, "hiddenSize": 2048, "numAttentionHeads": 16, "vocabSize": 32000,
        "disableBiasLinear": True, "numExperts": 64, "moeRouterTopk": 8, "moeFfnHiddenSize": 1024,
        "positionEmbeddingType": "rope",
    },
    "training": {"seqLength": 4096, "globalBatchSize": 1024, "lr": 1e-4, "trainIters": 1000, "bf16": True},
}  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"megatronArgs": {"use-megatron-fsdp": True}}, "needs a checkpoint format of its own"),
        (
            {
                "megatronArgs": {"cuda-graph-impl": "local"},
                "parallelism": {
                    "recomputeGranularity": "full",
                    "recomputeMethod": "uniform",
                    "recomputeNumLayers": 1,
                },
            },
            "goes with whole-iteration graphs only; set full_iteration",
        ),
        ({"megatronArgs": {"optimizer-cpu-offload": True}}, "set training.usePrecisionAwareOptimizer: true"),
    ],
)
def test_what_ends_in_an_assertion_of_megatron_is_refused(
    resolve: Any, spec: dict[str, Any], said: str
) -> None:
    with pytest.raises(Refused) as refused:
        plan(resolve("llama3-8b", 64, **spec))
    assert any(said in str(error) for error in refused.value.errors)


def notes(resolved: Any) -> str:
    return "\n".join(plan(resolved).notes)


def test_unbalanced_and_ungrouped_experts_are_warned_of(resolve: Any) -> None:
    said = notes(resolve(None, 64, **MOE))
    assert "nothing keeps the experts equally busy" in said
    assert "moeGroupedGemm is off" in said


def test_experts_that_span_nodes_are_told(resolve: Any) -> None:
    said = notes(resolve(None, 64, **MOE, parallelism={"expertModelParallelSize": 16}))
    assert "EP 16 spans nodes of 8" in said


def test_experts_of_one_nvlink_domain_are_not_said_to_use_the_network(resolve: Any) -> None:
    def said(experts: int) -> str:
        larger = MOE | {"model": MOE["model"] | {"numExperts": 128}}
        return notes(resolve(None, 128, "gb200", **larger, parallelism={"expertModelParallelSize": experts}))

    assert "EP 16 spans nodes of 4: tokens reach their experts over NVLink where" in said(16)
    assert "EP 128 spans NVLink domains of 72: tokens reach their experts over the network" in said(128)


def test_a_long_bubble_is_warned_of(resolve: Any) -> None:
    sizes = {"tensorModelParallelSize": 8, "pipelineModelParallelSize": 8, "contextParallelSize": 1}
    said = notes(resolve("llama3-8b", 64, training={"globalBatchSize": 9}, parallelism=sizes))
    assert "of a step: a larger globalBatchSize" in said


def test_fp8_is_proposed_where_the_accelerator_has_it(resolve: Any) -> None:
    assert "training.fp8Format hybrid would use them" in notes(resolve("llama3-8b", 8))
    assert "fp8Format" not in notes(resolve("llama3-8b", 8, accelerator="a100-80"))
