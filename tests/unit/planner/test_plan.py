"""Plans keep requested settings and complete the others; invalid recipes are rejected with all errors."""

from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.catalog import bridge_tables
from megatron_operator.planner import plan
from megatron_operator.planner.estimate import hardware

MIXTRAL: dict[str, Any] = {
    "model": {
        "numLayers": 32, "hiddenSize": 4096, "ffnHiddenSize": 14336, "numAttentionHeads": 32,
        "numQueryGroups": 8, "vocabSize": 32000, "maxPositionEmbeddings": 4096,
        "positionEmbeddingType": "rope", "swiglu": True,
        "normalization": "RMSNorm", "disableBiasLinear": True, "untieEmbeddingsAndOutputWeights": True,
        "numExperts": 8, "moeRouterTopk": 2,
    },
    "training": {"seqLength": 4096, "globalBatchSize": 512, "lr": 1e-4, "trainIters": 1000, "bf16": True},
}  # fmt: skip


def refusal(resolved: Any) -> list[str]:
    with pytest.raises(InvalidRecipeError) as refused:
        plan(resolved)
    return [str(error) for error in refused.value.errors]


def test_requested_sizes_are_kept(resolve: Any) -> None:
    p = plan(resolve("llama3-8b", 64, parallelism={"tensorModelParallelSize": 4, "contextParallelSize": 2}))
    assert (p.tensor_model_parallel_size, p.context_parallel_size) == (4, 2)


@pytest.mark.parametrize("count", [8, 16, 64, 256, 1024])
def test_the_world_size_is_the_product_of_its_dimensions(resolve: Any, count: int) -> None:
    p = plan(resolve("llama3-8b", count, training={"globalBatchSize": 1024}))
    product = (
        p.tensor_model_parallel_size
        * p.pipeline_model_parallel_size
        * p.context_parallel_size
        * p.data_parallel_size
    )
    assert p.world_size == count == product == p.nodes * p.per_node
    assert p.global_batch_size == p.micro_batch_size * p.data_parallel_size * p.gradient_accumulation
    assert sum(p.stage_layers) == 32
    assert p.memory_per_gpu is not None
    assert p.memory_per_gpu.capacity is not None
    assert p.memory_per_gpu.total <= p.memory_per_gpu.capacity


def test_expert_dimensions_divide_the_world_size(resolve: Any) -> None:
    p = plan(resolve(None, 64, **MIXTRAL))
    experts = p.expert_model_parallel_size * p.expert_tensor_parallel_size * p.expert_data_parallel_size
    assert experts * p.pipeline_model_parallel_size == 64
    assert p.expert_model_parallel_size > 1
    assert p.expert_tensor_parallel_size == 1


def test_fewer_accelerators_than_a_node_are_one_pod(resolve: Any) -> None:
    p = plan(resolve("gpt3-1.3b", 4))
    assert (p.nodes, p.per_node) == (1, 4)
    assert any("so one pod uses all" in note for note in p.notes)


def test_sequence_parallelism_follows_tensor_parallelism(resolve: Any) -> None:
    assert plan(resolve("llama3-8b", 64, parallelism={"tensorModelParallelSize": 2})).sequence_parallel
    assert not plan(resolve("gpt3-1.3b", 8, parallelism={"tensorModelParallelSize": 1})).sequence_parallel


def test_on_cpu_unsupported_settings_are_off(resolve: Any) -> None:
    p = plan(resolve("tiny-gpt", 4, accelerator="cpu", parallelism={"tensorModelParallelSize": 2}))
    assert (p.sequence_parallel, p.overlap_grad_reduce, p.overlap_param_gather) == (False, False, False)
    assert p.memory_per_gpu is not None
    assert p.memory_per_gpu.capacity is None


def test_on_cpu_experts_of_tensor_parallel_ranks_have_sequence_parallelism(resolve: Any) -> None:
    tensors = {"tensorModelParallelSize": 2}
    p = plan(resolve(None, 2, accelerator="cpu", **MIXTRAL, parallelism=tensors))
    assert (p.tensor_model_parallel_size, p.sequence_parallel) == (2, True)
    assert any(note.startswith("sequenceParallel on: ") for note in p.notes)


def test_on_cpu_sequence_parallelism_is_on_where_the_recipe_sets_it(resolve: Any) -> None:
    asked = {"tensorModelParallelSize": 2, "sequenceParallel": True}
    assert plan(resolve("tiny-gpt", 4, accelerator="cpu", parallelism=asked)).sequence_parallel


def test_layers_that_do_not_divide_are_split_and_noted(resolve: Any) -> None:
    shape = {"numLayers": 30}
    p = plan(resolve("llama3-8b", 64, model=shape, parallelism={"pipelineModelParallelSize": 4}))
    assert p.stage_layers == [7, 8, 8, 7]
    assert p.account_for_embedding_in_pipeline_split
    assert p.account_for_loss_in_pipeline_split
    assert "layers of the stages: 7, 8 x 2, 7" in p.notes


def test_all_errors_are_reported_together(resolve: Any) -> None:
    errors = refusal(
        resolve(
            "llama3-8b",
            12,
            training={"minLr": 1.0},
            parallelism={"tensorModelParallelSize": 3, "recomputeGranularity": "full"},
            megatronArgs={"num-layers": 4},
        )
    )
    fields = [line.partition(": ")[0] for line in errors]
    assert fields[:5] == [
        "spec.accelerator.count",
        "spec.training.minLr",
        "spec.parallelism.recomputeMethod",
        "spec.parallelism.recomputeNumLayers",
        "spec.megatronArgs.num-layers",
    ]
    assert "spec.parallelism.tensorModelParallelSize" in fields


@pytest.mark.parametrize(
    ("stages", "virtual", "layers", "acts_like"),
    [
        (4, 1, 9, "8, the most layers of each pipeline stage"),
        (4, 2, 5, "4, the most layers of each virtual pipeline stage"),
        (1, 1, 33, "32, the most layers of the model"),
        (4, 1, 8, None),
        (4, 2, 4, None),
    ],
)
def test_more_recomputed_layers_than_a_stage_has_act_like_its_layers_by_the_notes(
    resolve: Any, stages: int, virtual: int, layers: int, acts_like: str | None
) -> None:
    recomputed = {
        "recomputeGranularity": "full",
        "recomputeMethod": "block",
        "recomputeNumLayers": layers,
        "tensorModelParallelSize": 8,
        "pipelineModelParallelSize": stages,
        "numVirtualStagesPerPipelineRank": virtual,
    }
    p = plan(resolve("llama3-8b", 64, parallelism=recomputed))
    notes = [note for note in p.notes if "acts like" in note]
    expected = f"recomputeNumLayers {layers} acts like {acts_like}"
    assert notes == ([expected] if acts_like else [])


def test_layers_are_recomputed_in_each_virtual_stage(resolve: Any) -> None:
    """The first 4 of each virtual stage's 4 layers are all, as with uniform units."""
    found = []
    for method in ("block", "uniform"):
        layout = {
            "tensorModelParallelSize": 8,
            "pipelineModelParallelSize": 4,
            "numVirtualStagesPerPipelineRank": 2,
            "recomputeGranularity": "full",
            "recomputeMethod": method,
            "recomputeNumLayers": 4,
        }
        expected = plan(resolve("llama3-8b", 64, parallelism=layout)).expected
        assert expected is not None
        found.append(expected.step_seconds)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("parallelism", "message"),
    [
        ({"tensorModelParallelSize": 16}, "16 does not divide the 8 accelerators of a pod"),
        (
            {"tensorModelParallelSize": 8, "pipelineModelParallelSize": 16},
            "= 128 does not divide accelerator.count 64",
        ),
        (
            {"contextParallelSize": 64, "tensorModelParallelSize": 8},
            "= 512 does not divide accelerator.count 64",
        ),
        ({"expertModelParallelSize": 2}, "EP 2, but the model has no experts"),
        ({"contextParallelSize": 16, "cpCommType": "a2a"}, "a2a splits the 32 heads and 8 groups"),
    ],
)
def test_an_invalid_layout_is_rejected_with_its_numbers(
    resolve: Any, parallelism: dict[str, Any], message: str
) -> None:
    assert any(message in line for line in refusal(resolve("llama3-8b", 64, parallelism=parallelism)))


@pytest.mark.parametrize(
    ("parallelism", "message"),
    [
        ({"expertModelParallelSize": 3}, "EP 3 does not divide numExperts 8"),
        (
            {"expertModelParallelSize": 8, "expertTensorParallelSize": 8, "pipelineModelParallelSize": 2},
            "ETP 8 x EP 8 x PP 2 = 128 does not divide accelerator.count 64",
        ),
        (
            {"tensorModelParallelSize": 2, "sequenceParallel": False},
            "with experts requires sequence parallelism, which is off here; set 1, or sequenceParallel true",
        ),
    ],
)
def test_constraints_of_experts_are_enforced(resolve: Any, parallelism: dict[str, Any], message: str) -> None:
    assert any(message in line for line in refusal(resolve(None, 64, **MIXTRAL, parallelism=parallelism)))


def test_biased_experts_are_not_split(resolve: Any) -> None:
    biased = MIXTRAL | {"model": MIXTRAL["model"] | {"disableBiasLinear": False}}
    errors = refusal(resolve(None, 64, **biased, parallelism={"expertTensorParallelSize": 2}))
    assert any("Megatron supports biased experts at ETP 1 only" in line for line in errors)


def test_a_batch_is_refused_beside_other_errors_only_where_the_data_parallel_size_is_given(
    resolve: Any,
) -> None:
    """With EP 2 and a chosen PP of 3 the batch of 32 suits 24 accelerators."""
    experts = {"expertModelParallelSize": 3}
    [line] = refusal(resolve("qwen3-30b-a3b", 24, parallelism=experts))
    assert "expertModelParallelSize: EP 3 does not divide numExperts 128" in line
    sizes = {"tensorModelParallelSize": 1, "pipelineModelParallelSize": 1, "contextParallelSize": 1}
    both = refusal(resolve("qwen3-30b-a3b", 24, parallelism=experts | sizes))
    assert any("is not divisible by microBatchSize 1 x DP 24" in each for each in both)


@pytest.mark.parametrize("few", [8, 7])
def test_a_model_that_does_not_fit_names_a_sufficient_count(resolve: Any, few: int) -> None:
    [line] = refusal(resolve("llama3-70b", few))
    assert f"on {few} accelerators even the most memory-efficient layout" in line
    count = int(line.partition("; use ")[2].split()[0])
    assert count <= 64
    assert plan(resolve("llama3-70b", count)).world_size == count


def test_a_sufficient_count_is_of_whole_nodes(resolve: Any) -> None:
    [line] = refusal(resolve("llama3-70b", 6, per_node=6))
    assert "; use 24 or more" in line
    assert plan(resolve("llama3-70b", 24, per_node=6)).nodes == 4


def test_the_only_layout_is_not_blamed_on_a_recipe_without_one(resolve: Any) -> None:
    """With 11 pods of one accelerator no other size than DP divides the count."""
    run: dict[str, Any] = {"per_node": 1, "training": {"globalBatchSize": 1100}}
    for sizes in ({}, {"tensorModelParallelSize": 1}):
        [line] = refusal(resolve("llama3-70b", 11, **run, parallelism=sizes))
        assert line.startswith("spec.accelerator.count: on 11 accelerators even the most memory-efficient")


def test_unknown_hardware_is_planned_without_memory(resolve: Any) -> None:
    p = plan(resolve("llama3-70b", 8, accelerator="unheard-of"))
    assert p.memory_per_gpu is not None
    assert p.memory_per_gpu.capacity is None
    assert any("their speed and memory are unknown" in note for note in p.notes)


def test_unpadded_and_padded_parameters_are_separate(resolve: Any) -> None:
    p = plan(resolve("gpt3-1.3b", 8))
    assert p.parameters == 1_315_723_264
    assert p.parameters_padded == 1_315_819_520


def test_layers_of_multi_token_prediction_are_allocated_and_are_not_of_the_model_card(resolve: Any) -> None:
    """The padded number was also seen of the real model with Transformer Engine's layers."""
    p = plan(resolve("deepseek-v3", 1024, accelerator="h100-sxm"))
    assert p.parameters == 671_026_404_352
    assert p.parameters_padded == 682_636_472_320


def test_a_plan_round_trips_through_json(resolve: Any) -> None:
    p = plan(resolve("llama3-8b", 8))
    assert type(p).model_validate(p.wire()) == p


def test_every_accelerator_of_the_catalog_is_in_the_table() -> None:
    named = {name for entry in catalog.load() for layout in entry.layouts for name in layout.accelerators}
    assert named <= hardware.table().keys() | bridge_tables.WITHOUT_DATA_SHEET


NVL72 = {"accelerator": "gb200", "training": {"globalBatchSize": 1152}}


@pytest.mark.parametrize(("tp", "count"), [(8, 8), (8, 72), (16, 64)])
def test_a_tensor_parallel_group_may_span_pods_of_one_nvlink_domain(
    resolve: Any, tp: int, count: int
) -> None:
    asked = {"tensorModelParallelSize": tp, "pipelineModelParallelSize": 1}
    p = plan(resolve("llama3-70b", count, **NVL72, parallelism=asked))
    assert (p.tensor_model_parallel_size, p.per_node) == (tp, 4)
    note = f"TP {tp} spans {tp // 4} pods: all pods are placed in one NVLink domain"
    assert any(note in n for n in p.notes)


def test_a_tensor_parallel_group_may_not_span_pods_of_several_domains(resolve: Any) -> None:
    errors = refusal(resolve("llama3-70b", 128, **NVL72, parallelism={"tensorModelParallelSize": 8}))
    assert "8 spans 2 pods, and 128 accelerators are more than an NVLink domain's 72" in errors[0]


def test_a_tensor_parallel_group_divides_its_pods(resolve: Any) -> None:
    errors = refusal(
        resolve("llama3-8b", 24, accelerator="gb200", parallelism={"tensorModelParallelSize": 6})
    )
    assert "6 does not divide the 4 accelerators of a pod" in errors[0]


def test_planned_tensor_parallel_groups_stay_in_a_pod(resolve: Any) -> None:
    assert plan(resolve("llama3.1-405b", 64, **NVL72)).tensor_model_parallel_size <= 4


def test_cheap_modules_are_recomputed_before_whole_layers(resolve: Any) -> None:
    p = plan(resolve("deepseek-v3", 512))
    assert (p.recompute_granularity, p.recompute_method) == ("selective", None)
    assert p.recompute_modules == ["mla_up_proj", "layernorm", "moe_act"]
    assert any(note.startswith("recomputeModules mla_up_proj, layernorm, moe_act") for note in p.notes)


@pytest.mark.parametrize(
    ("recipe", "spec", "message"),
    [
        ("llama3-8b", {"recomputeModules": ["mlp"]}, "is set with recomputeGranularity none"),
        (
            "llama3-8b",
            {"recomputeGranularity": "selective", "recomputeModules": ["mla_up_proj"]},
            "mla_up_proj without multiLatentAttention",
        ),
        (
            "gpt3-7b",
            {"recomputeGranularity": "selective", "recomputeModules": ["moe_act"]},
            "moe_act without experts",
        ),
        (
            "llama3-8b",
            {"recomputeGranularity": "selective", "recomputeModules": ["moe", "core_attn", "shared_experts"]},
            "moe, shared_experts without experts",
        ),
        (
            "mixtral-8x7b",
            {"recomputeGranularity": "selective", "recomputeModules": ["shared_experts"]},
            "shared_experts without moeSharedExpertIntermediateSize",
        ),
        (
            "llama3-8b-fp8",
            {"recomputeGranularity": "selective", "recomputeModules": ["layernorm"]},
            "layernorm with delayed FP8 scaling",
        ),
    ],
)
def test_modules_that_megatron_does_not_recompute_are_rejected(
    resolve: Any, recipe: str, spec: dict[str, Any], message: str
) -> None:
    errors = refusal(resolve(recipe, 8, parallelism=spec))
    assert any(
        error.startswith("spec.parallelism.recomputeModules: ") and message in error for error in errors
    )


@pytest.mark.parametrize(
    ("layout", "error"),
    [
        ({"expertTensorParallelSize": 2}, "expertTensorParallelSize: 2 has no effect without numExperts"),
        (
            {"cpCommType": "a2a", "contextParallelSize": 1},
            "cpCommType: a2a has no effect without contextParallelSize above 1",
        ),
    ],
)
def test_groups_without_effect_are_refused(resolve: Any, layout: dict[str, Any], error: str) -> None:
    assert any(error in each for each in refusal(resolve("llama3-8b", 8, parallelism=layout)))


def test_a_published_layout_that_an_exchange_of_heads_does_not_divide_is_not_taken(resolve: Any) -> None:
    """TP 4 x CP 8 for 8 groups."""
    planned = plan(resolve("llama3-8b-128k", 64, parallelism={"cpCommType": "a2a"}))
    assert 8 % (planned.tensor_model_parallel_size * planned.context_parallel_size) == 0
    assert any("a2a splits 8 groups of heads over TP 4 x CP 8" in note for note in planned.notes)


@pytest.mark.parametrize(("tp", "fix"), [(2, "a CP of 2 or 4"), (8, "a smaller tensorModelParallelSize")])
def test_the_sizes_that_an_exchange_of_heads_divides_are_named(resolve: Any, tp: int, fix: str) -> None:
    layout = {"cpCommType": "a2a", "tensorModelParallelSize": tp, "pipelineModelParallelSize": 1}
    [found] = refusal(resolve("llama3-8b", 64, parallelism=layout | {"contextParallelSize": 8}))
    assert found.endswith(f"; set p2p, or {fix}")


def test_an_elastic_run_that_cannot_shrink_has_a_note(resolve: Any) -> None:
    smallest = "recovery.elastic.minCount 16: on 16 accelerators the run cannot shrink"
    assert smallest in plan(resolve("llama3-8b", 16, recovery={"elastic": {"minCount": 16}})).notes
    shrinks = plan(resolve("llama3-8b", 16, recovery={"elastic": {"minCount": 8}})).notes
    assert not any("cannot shrink" in note for note in shrinks)


@pytest.mark.parametrize(("count", "least", "per_node"), [(8, 2, 4), (8, 5, 1), (4, 1, 2)])
def test_an_elastic_run_of_one_node_has_a_note_with_the_nodes_of_which_it_can_lose_some(
    resolve: Any, count: int, least: int, per_node: int
) -> None:
    elastic = {"elastic": {"minCount": least}}
    [note] = [each for each in plan(resolve("llama3-8b", count, recovery=elastic)).notes if "elastic" in each]
    assert note == (
        f"recovery.elastic: on {count} accelerators of one node the run cannot shrink; with"
        f" accelerator.perNode {per_node} it can"
    )
    shrinks = plan(resolve("llama3-8b", count, per_node=per_node, recovery=elastic)).notes
    assert not any("cannot shrink" in each for each in shrinks)
