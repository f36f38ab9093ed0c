"""Lint rules reject or warn, with cause and fix."""

from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.planner import plan

MOE: dict[str, Any] = {
    "model": {
        "numLayers": 16, "hiddenSize": 2048, "numAttentionHeads": 16, "vocabSize": 32000,
        "disableBiasLinear": True, "numExperts": 64, "moeRouterTopk": 8, "moeFfnHiddenSize": 1024,
        "positionEmbeddingType": "rope",
    },
    "training": {"seqLength": 4096, "globalBatchSize": 1024, "lr": 1e-4, "trainIters": 1000, "bf16": True},
}  # fmt: skip

GATHERED = {"fp8Format": "hybrid", "fp8ParamGather": True}
REPLICATED = {"useDistributedOptimizer": False}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"megatronArgs": {"use-torch-fsdp2": True}},
            "set parallelism.useMegatronFsdp, which shards as much",
        ),
        (
            {"megatronArgs": {"use-torch-fsdp2": True}, "model": {"numExperts": 8, "moeRouterTopk": 2}},
            "leave it out: useDistributedOptimizer shards the optimizer states",
        ),
        (
            {
                "megatronArgs": {"cuda-graph-impl": "local"},
                "parallelism": {
                    "recomputeGranularity": "full",
                    "recomputeMethod": "uniform",
                    "recomputeNumLayers": 1,
                },
            },
            "only supports whole-iteration graphs; set full_iteration",
        ),
        (
            {"megatronArgs": {"cuda-graph-impl": "full_iteration", "cuda-graph-modules": ["attn"]}},
            "cuda-graph-modules: with cuda-graph-impl full_iteration, which captures everything",
        ),
        ({"megatronArgs": {"optimizer-cpu-offload": True}}, "set training.usePrecisionAwareOptimizer: true"),
        (
            {
                "training": {"bf16": False, "usePrecisionAwareOptimizer": True},
                "megatronArgs": {"optimizer-cpu-offload": True},
            },
            "cannot load the states of this optimizer for parameters in FP32; set training.bf16: true",
        ),
        (
            {
                "training": GATHERED | {"fp8Recipe": "tensorwise", "usePrecisionAwareOptimizer": True},
                "megatronArgs": {"optimizer-cpu-offload": True},
            },
            "optimizer-cpu-offload: takes fp8ParamGather with delayed scaling alone, and fp8Recipe is tensor",
        ),
        (
            {"training": GATHERED, "parallelism": REPLICATED},
            "spec.training.fp8ParamGather: requires the distributed optimizer, which is off",
        ),
        (
            {"training": {"usePrecisionAwareOptimizer": True}, "parallelism": REPLICATED},
            "spec.training.usePrecisionAwareOptimizer: requires the distributed optimizer, which is off;"
            " set parallelism.useDistributedOptimizer: true, or usePrecisionAwareOptimizer: false",
        ),
        ({"parallelism": {"cpCommType": "a2a+p2p"}}, "set megatronArgs.hierarchical-context-parallel-sizes"),
        ({"megatronArgs": {"overlap-moe-expert-parallel-comm": True}}, "the model has no experts"),
        (
            {
                "accelerator": "gb200",
                "training": {"fp4Format": "e2m1"},
                "megatronArgs": {"fp4-recipe": "custom"},
            },
            "fp4-recipe: custom requires fp4-quantizer-factory",
        ),
        (
            {"training": {"fp4ParamGather": True}},
            "fp4ParamGather: is set without fp4Format; set fp4Format: e2m1, or leave it out",
        ),
        (
            {
                "parallelism": {"tensorModelParallelSize": 8},
                "model": {"numQueryGroups": 12, "numAttentionHeads": 48, "kvChannels": 128},
            },
            "8 is neither a divisor nor a multiple of numQueryGroups 12",
        ),
    ],
)
def test_combinations_that_fail_in_megatron_are_rejected(
    resolve: Any, spec: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRecipeError) as refused:
        plan(resolve("llama3-8b", 64, **spec))
    assert any(message in str(error) for error in refused.value.errors)


@pytest.mark.parametrize(
    "spec",
    [
        {
            "training": GATHERED | {"fp8Recipe": "delayed", "usePrecisionAwareOptimizer": True},
            "megatronArgs": {"optimizer-cpu-offload": True},
        },
        {"training": GATHERED | {"fp8Recipe": "tensorwise", "usePrecisionAwareOptimizer": True}},
        {"training": {"fp8Format": "hybrid"}, "parallelism": REPLICATED},
    ],
)
def test_settings_of_the_optimizer_that_megatron_takes_are_planned(
    resolve: Any, spec: dict[str, Any]
) -> None:
    assert plan(resolve("llama3-8b", 64, **spec)).world_size == 64


@pytest.mark.parametrize(
    ("spec", "is_suggested"),
    [
        ({}, True),
        ({"training": {"fp4Format": "e2m1"}}, False),
        ({"training": {"fp8Format": "e4m3"}}, False),
    ],
)
def test_fp8_is_suggested_only_to_a_recipe_without_a_lower_precision(
    resolve: Any, spec: dict[str, Any], is_suggested: bool
) -> None:
    assert (
        "fp8Format hybrid would use them" in notes(resolve("llama3-8b", 8, "gb200", **spec))
    ) is is_suggested


def notes(resolved: Any) -> str:
    return "\n".join(plan(resolved).notes)


def test_unbalanced_and_ungrouped_experts_cause_warnings(resolve: Any) -> None:
    found = notes(resolve(None, 64, **MOE))
    assert "nothing keeps the experts equally busy" in found
    assert "moeGroupedGemm is off" in found


def test_experts_that_span_nodes_cause_a_warning(resolve: Any) -> None:
    found = notes(resolve(None, 64, **MOE, parallelism={"expertModelParallelSize": 16}))
    assert "EP 16 spans nodes of 8" in found


def test_experts_in_one_nvlink_domain_do_not_use_the_network(resolve: Any) -> None:
    def notes_with(experts: int) -> str:
        larger = MOE | {"model": MOE["model"] | {"numExperts": 128}}
        return notes(resolve(None, 128, "gb200", **larger, parallelism={"expertModelParallelSize": experts}))

    assert "EP 16 spans nodes of 4: tokens reach their experts over NVLink within" in notes_with(16)
    assert "EP 128 spans NVLink domains of 72: tokens reach their experts over the network" in notes_with(128)


@pytest.mark.parametrize(
    ("accelerator", "tp", "cause"),
    [("l40s", 8, "TP is 8, l40s has no NVLink"), ("h100-pcie", 4, "TP is 4, h100-pcie has domains of 2")],
)
def test_tensor_overlap_without_nvlink_between_the_ranks_causes_a_warning(
    resolve: Any, accelerator: str, tp: int, cause: str
) -> None:
    layout = {"tensorModelParallelSize": tp, "tpCommOverlap": True}
    found = notes(resolve("llama3-8b", 16, accelerator, parallelism=layout))
    assert f"tpCommOverlap needs TP groups within an NVLink domain: {cause}" in found
    assert "tpCommOverlap" not in notes(resolve("llama3-8b", 16, "h100-sxm", parallelism=layout))


def test_more_accelerators_than_a_node_has_cause_a_warning(resolve: Any) -> None:
    warning = "pods of 16 find no node: by perNode of the platform's profile h100-sxm, a node has 8"
    assert warning in notes(resolve("llama3-8b", 16, per_node=16))
    assert "find no node" not in notes(resolve("llama3-8b", 16, per_node=8))
    assert "find no node" not in notes(resolve("tiny-gpt", 4, "cpu", per_node=4))


def test_a_long_bubble_causes_a_warning(resolve: Any) -> None:
    sizes = {"tensorModelParallelSize": 8, "pipelineModelParallelSize": 8, "contextParallelSize": 1}
    found = notes(resolve("llama3-8b", 64, training={"globalBatchSize": 9}, parallelism=sizes))
    assert "of a step: a larger globalBatchSize" in found


@pytest.mark.parametrize(
    ("batch", "virtual", "layers", "named"),
    [(8, 2, 32, True), (8, 4, 32, False), (9, None, 32, False), (8, None, 29, False)],
)
def test_virtual_stages_are_proposed_only_where_stages_and_micro_batches_take_more(
    resolve: Any, batch: int, virtual: int | None, layers: int, named: bool
) -> None:
    """Of 4 layers a stage has at most 4 virtual ones, and 29 layers on 8 stages leave 1 for the last."""
    sizes = {"tensorModelParallelSize": 8, "pipelineModelParallelSize": 8, "contextParallelSize": 1}
    asked = sizes | ({"numVirtualStagesPerPipelineRank": virtual} if virtual else {})
    changed = {"training": {"globalBatchSize": batch}, "model": {"numLayers": layers}}
    found = notes(resolve("llama3-8b", 64, **changed, parallelism=asked))
    assert "of a step: a larger globalBatchSize" in found
    assert ("globalBatchSize or numVirtualStagesPerPipelineRank would help" in found) is named


def test_fp8_is_suggested_if_the_accelerator_supports_it(resolve: Any) -> None:
    assert "training.fp8Format hybrid would use them" in notes(resolve("llama3-8b", 8))
    assert "fp8Format" not in notes(resolve("llama3-8b", 8, accelerator="a100-80"))


@pytest.mark.parametrize(
    "spec",
    [
        {"training": {"bf16": False, "fp16": True}},
        {"training": {"transformerImpl": "local"}, "image": "own"},
        {"parallelism": {"useMegatronFsdp": True}},
    ],
)
def test_fp8_is_not_suggested_where_it_is_refused(resolve: Any, spec: dict[str, Any]) -> None:
    assert "FP8 matrix products" not in notes(resolve("llama3.2-1b", 8, **spec))


@pytest.mark.parametrize(
    ("count", "length", "remedy"),
    [
        (8, 32_768, "; contextParallelSize 2, 4 or 8 splits them"),
        (4, 32_768, "; contextParallelSize 2 or 4 splits them"),
        (8, 32_764, "; contextParallelSize 2 splits them"),
        (1, 32_768, ""),
    ],
)
def test_only_sizes_that_suit_count_and_length_are_named_for_long_sequences(
    resolve: Any, count: int, length: int, remedy: str
) -> None:
    spec = {"training": {"seqLength": length}, "model": {"maxPositionEmbeddings": 131_072}}
    p = plan(resolve("llama3.2-1b", count, **spec, parallelism={"contextParallelSize": 1}))
    [note] = [each for each in p.notes if each.startswith(f"sequences of {length} on CP 1")]
    assert note.endswith(f"% of the memory{remedy}")


OVERLAP = {"megatronArgs": {"overlap-moe-expert-parallel-comm": True}}


@pytest.mark.parametrize(
    ("parallelism", "message"),
    [
        ({"expertModelParallelSize": 1}, "EP is 1"),
        ({"pipelineModelParallelSize": 2}, "PP 2 without virtual stages"),
        (
            {"recomputeGranularity": "full", "recomputeMethod": "uniform", "recomputeNumLayers": 1},
            "full recomputation",
        ),
    ],
)
def test_unsupported_expert_overlap_is_rejected(
    resolve: Any, parallelism: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRecipeError) as refused:
        plan(resolve(None, 64, **MOE, **OVERLAP, parallelism=parallelism))
    assert any(f"is not supported here: {message}" in str(error) for error in refused.value.errors)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"parallelism": {"recomputeGranularity": "selective", "recomputeModules": ["moe"]}},
            "recomputeModules has moe; set others, for example moe_act",
        ),
        (
            {"model": {"moeTokenDispatcherType": "allgather"}},
            "moeTokenDispatcherType is allgather; set model.moeTokenDispatcherType: alltoall",
        ),
        ({"model": {"mtpNumLayers": 2}}, "mtpNumLayers is 2; set model.mtpNumLayers: 1"),
        ({"training": {"bf16": False}}, "the run is in FP32; set training.bf16: true"),
        (
            {"megatronArgs": {"moe-shared-expert-overlap": True}},
            "moe-shared-expert-overlap is set too; set one of the two",
        ),
        (
            {
                "megatronArgs": {
                    "cuda-graph-impl": "transformer_engine",
                    "cuda-graph-modules": ["attn", "mlp"],
                }
            },
            "cuda-graph-modules has mlp; set others, for example attn and moe_router",
        ),
    ],
)
def test_settings_that_exclude_expert_overlap_are_rejected_with_it(
    resolve: Any, changed: dict[str, dict[str, Any]], message: str
) -> None:
    spec = MOE | OVERLAP
    spec |= {section: spec.get(section, {}) | values for section, values in changed.items()}
    with pytest.raises(InvalidRecipeError) as refused:
        plan(resolve(None, 64, **spec))
    assert any(f"is not supported here: {message}" in str(error) for error in refused.value.errors)


@pytest.mark.parametrize(
    "changed",
    [
        {"parallelism": {"recomputeGranularity": "selective", "recomputeModules": ["layernorm"]}},
        {"model": {"moeTokenDispatcherType": "alltoall"}},
        {"model": {"mtpNumLayers": 1}},
        {"megatronArgs": {"cuda-graph-impl": "transformer_engine", "cuda-graph-modules": ["attn"]}},
    ],
)
def test_expert_overlap_is_planned_with_what_it_does_not_exclude(
    resolve: Any, changed: dict[str, dict[str, Any]]
) -> None:
    spec = MOE | OVERLAP
    spec |= {section: spec.get(section, {}) | values for section, values in changed.items()}
    assert plan(resolve(None, 64, **spec)).expert_model_parallel_size > 1


def test_the_planned_layout_supports_expert_overlap(resolve: Any) -> None:
    made = plan(resolve(None, 64, **MOE, **OVERLAP))
    assert made.expert_model_parallel_size > 1
    assert made.recompute_granularity != "full"
    assert made.pipeline_model_parallel_size == 1 or made.virtual_pipeline_model_parallel_size
    assert any("may cost more than it hides on Hopper" in note for note in made.notes)


def test_an_ep_that_is_too_small_is_rejected_with_one_that_fits(resolve: Any) -> None:
    with pytest.raises(InvalidRecipeError) as refused:
        plan(resolve("deepseek-v3", 256, parallelism={"expertModelParallelSize": 1}))
    [error] = refused.value.errors
    assert error.field == "spec.parallelism.expertModelParallelSize"
    assert "1: even the most memory-efficient layout with it" in error.message
    size = int(error.fix.split()[1].rstrip(","))
    assert plan(resolve("deepseek-v3", 256, parallelism={"expertModelParallelSize": size}))


def test_long_sequences_that_are_not_split_cause_a_warning(resolve: Any) -> None:
    asked = {"tensorModelParallelSize": 8, "contextParallelSize": 1}
    found = notes(resolve("llama3-8b-64k", 32, parallelism=asked))
    assert "sequences of 65536 on CP 1" in found


def test_more_tensor_parallel_ranks_than_query_groups_cause_a_warning(resolve: Any) -> None:
    found = notes(
        resolve("qwen2.5-7b", 8, parallelism={"tensorModelParallelSize": 4}, model={"numQueryGroups": 2})
    )
    assert "TP 4 is above numQueryGroups 2" in found


def test_a_batch_that_leaves_accelerators_idle_causes_a_warning(resolve: Any) -> None:
    assert "globalBatchSize 32 is less than a sample for each of 1024" in notes(
        resolve("qwen3-235b-a22b", 1024)
    )


@pytest.mark.parametrize(
    ("timeout", "warned"), [("60s", True), ("2m", True), ("10m", False), ("auto", False), ("off", False)]
)
def test_a_hang_timeout_below_two_steps_is_warned_of(resolve: Any, timeout: str, warned: bool) -> None:
    """A step of this run is expected to take about 68 s."""
    notes = plan(resolve("llama3-70b", 64, recovery={"hangTimeout": timeout})).notes
    assert [note.startswith("recovery.hangTimeout") for note in notes].count(True) == warned
