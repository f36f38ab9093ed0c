"""Recipes of GLM-5: where the operator starts them, and the layers with which their stages begin."""

from functools import partial
from typing import Any

import pytest
from megatron_contract.bridge_run import BridgeRun
from megatron_operator import catalog, manifests
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.planner import admit
from megatron_operator.planner.search.pipeline_split import parse_layout

from tests.unit.planner import kernel_recipes

KERNELS = "flash-mla"
GPUS = 416
"""H100s of a published layout of glm5.2."""
EP: dict[str, Any] = {"pipelineModelParallelSize": 1, "expertModelParallelSize": 2}
PP1: dict[str, Any] = {"pipelineModelParallelSize": 1, "expertModelParallelSize": 1}
EP1: dict[str, Any] = {"expertModelParallelSize": 1}
QUERIES = ("linear_q_down_proj", "linear_q_up_proj")
SELECTING = {0, 1, 2, *range(6, 78, 4)}
"""Layers of GLM-5.2 that have an indexer, counted from 0: `index_topk_freq` 4, `index_skip_topk_offset` 3."""


planned = partial(kernel_recipes.planned, kernel_recipes.platform(KERNELS))
refusal = partial(kernel_recipes.refusal, kernel_recipes.platform(KERNELS))


@pytest.mark.parametrize("accelerator", ["kernels", "kernels-and-dispatchers"])
def test_sparse_attention_is_pretrained_where_the_image_has_the_kernels(accelerator: str) -> None:
    run = planned("glm5.2", accelerator, GPUS)
    assert manifests.build(run, "").job["kind"] == "PyTorchJob"
    assert BridgeRun.from_arguments(run.arguments).overrides["checkpoint.save"] == "/checkpoints/run"


def test_sparse_attention_is_pretrained_on_cpus() -> None:
    run = planned("glm5.2", "cpu", 2, parallelism=EP)
    assert manifests.build(run, "").job["kind"] == "PyTorchJob"
    assert run.plan.expert_model_parallel_size == 2


def test_it_is_refused_on_other_gpus_with_the_package_to_add() -> None:
    refused = refusal("glm5.2", "h100-sxm", GPUS)
    assert refused.startswith("spec.recipe: ")
    assert f"on GPUs the trainer's image lacks kernels that it needs: {KERNELS};" in refused
    assert f"add {KERNELS} to imageHas of profile h100-sxm" in refused


def test_heads_are_not_split_on_a_cpu_where_it_was_not_tried_with_sequence_parallelism() -> None:
    """`AbsorbedMLASelfAttention` asserts it at TP above 1."""
    refused = refusal("glm5.2", "cpu", 2, parallelism={**PP1, "tensorModelParallelSize": 2})
    assert refused.startswith("spec.parallelism.tensorModelParallelSize: ")


@pytest.mark.parametrize("pp", [2, 4, 8, 16])
def test_stages_of_shared_selections_begin_with_layers_that_have_an_indexer(pp: int) -> None:
    run = planned("glm5.2", "cpu", 16, parallelism={"pipelineModelParallelSize": pp, **EP1})
    layout = BridgeRun.from_arguments(run.arguments).overrides["model.pipeline_model_parallel_layout"]
    counts = [chunk.count("t") for chunk in parse_layout(str(layout))]
    begins = {sum(counts[:stage]) for stage in range(pp)}
    assert len(begins) == pp
    assert begins <= SELECTING


@pytest.mark.parametrize(
    ("sizes", "field", "layer"),
    [
        ({"decoderFirstPipelineNumLayers": 39}, "decoderFirstPipelineNumLayers", 40),
        ({"decoderLastPipelineNumLayers": 38}, "decoderLastPipelineNumLayers", 41),
        ({"pipelineModelParallelLayout": "Et*40|t*38mL"}, "pipelineModelParallelLayout", 41),
    ],
)
def test_stages_that_begin_with_another_layer_are_refused(
    sizes: dict[str, Any], field: str, layer: int
) -> None:
    refused = refusal("glm5.2", "cpu", 16, parallelism={"pipelineModelParallelSize": 2, **EP1, **sizes})
    assert refused.startswith(f"spec.parallelism.{field}: a stage begins with layer {layer}, which attends")
    assert "begin stages with layers 1, 2, 3, 7, 11, " in refused


@pytest.mark.parametrize("count", [208, 416])
def test_adapters_are_trained_where_the_image_has_the_kernels(count: int) -> None:
    run = planned("glm5.2-lora", "kernels", count)
    assert manifests.build(run, "").job["kind"] == "PyTorchJob"
    found = BridgeRun.from_arguments(run.arguments).overrides
    assert found["peft.target_modules"] == [
        *QUERIES,
        "linear_kv_down_proj",
        "linear_kv_up_proj",
        "linear_proj",
    ]
    assert run.plan.sequence_parallel or run.plan.tensor_model_parallel_size == 1
    layout = found["model.pipeline_model_parallel_layout"]
    stages = run.plan.pipeline_model_parallel_size * (run.plan.virtual_pipeline_model_parallel_size or 1)
    counts = [chunk.count("t") for chunk in parse_layout(str(layout))]
    assert len(counts) == stages
    assert {sum(counts[:stage]) for stage in range(stages)} <= SELECTING


def test_adapters_are_trained_on_cpus_and_refused_on_gpus_without_the_kernels() -> None:
    assert manifests.build(planned("glm5.2-lora", "cpu", 2, parallelism=EP), "").job["kind"] == "PyTorchJob"
    refused = refusal("glm5.2-lora", "h100-sxm", 208)
    assert f"on GPUs the trainer's image lacks kernels that it needs: {KERNELS};" in refused


def test_samples_of_the_recipe_are_not_cut_to_the_number_of_the_functions() -> None:
    data = {"volume": {"claimName": "corpus"}, "datasetRoot": "chats"}
    run = planned("glm5.2-lora", "cpu", 2, parallelism=EP, data=data)
    found = BridgeRun.from_arguments(run.arguments).overrides
    assert found["dataset.max_train_samples"] is None
    assert found["dataset.hf_output_root"] is None


def test_dora_is_refused_on_the_weight_that_sparse_attention_reads_itself() -> None:
    refused = refusal("glm5.2-lora", "cpu", 2, parallelism=EP, peft={"type": "dora"})
    assert refused.startswith(
        "spec.peft.targetModules: DoRA on linear_kv_up_proj of glm5.2-lora has no weight"
    )
    others = [*QUERIES, "linear_kv_down_proj", "linear_proj"]
    assert refused.endswith(f"; set {', '.join(others)}, or type lora")
    planned("glm5.2-lora", "cpu", 2, parallelism=EP, peft={"type": "dora", "targetModules": others})


def test_all_weights_are_trained_by_the_published_layout_that_splits_sequences() -> None:
    run = planned("glm5.2-sft", "kernels", 608)
    assert manifests.build(run, "").job["kind"] == "PyTorchJob"
    assert (run.plan.context_parallel_size, run.plan.expert_model_parallel_size) == (32, 32)
    found = BridgeRun.from_arguments(run.arguments)
    assert found.function == "glm52_sft_608gpu_h100_bf16_200k_config"
    assert found.overrides["model.context_parallel_size"] == 32


@pytest.mark.parametrize("recipe", ["glm5.2-sft", "glm5.2-lora"])
def test_losses_of_split_sequences_are_averaged_over_all_their_tokens(recipe: str) -> None:
    """Megatron-Bridge refuses fine-tuning with CP above 1 otherwise."""
    for cp in (1, 2):
        run = planned(recipe, "cpu", 2, parallelism={**PP1, "contextParallelSize": cp})
        found = BridgeRun.from_arguments(run.arguments).overrides
        assert found["model.context_parallel_size"] == cp
        assert found.get("model.calculate_per_token_loss") is (True if cp > 1 else None)
        assert found.get("ddp.average_in_collective") is (False if cp > 1 else None)


def test_long_samples_are_split_and_short_ones_are_not() -> None:
    sizes = {}
    for length in (8192, 65_536):
        training = {"seqLength": length, "globalBatchSize": 64}
        sizes[length] = planned("glm5.2-sft", "kernels", 416, training=training).plan.context_parallel_size
    assert sizes[8192] == 1 < sizes[65_536]


def test_the_note_on_long_sequences_names_what_splits_them() -> None:
    def note(recipe: str, accelerator: str, count: int) -> str:
        training = {"seqLength": 32_768, "globalBatchSize": 64}
        sizes = {"contextParallelSize": 1}
        run = planned(recipe, accelerator, count, training=training, parallelism=sizes)
        (found,) = (each for each in run.plan.notes if each.startswith("sequences of 32768 on CP 1"))
        return found

    assert note("glm5.2-lora", "kernels", 416).endswith("contextParallelSize 2, 4 or 8 splits them")
    assert "contextParallelSize is not passed to Megatron-Bridge" in note("llama3.1-8b-lora", "h100-sxm", 8)


def test_packed_samples_are_not_split() -> None:
    data = {"volume": {"claimName": "corpus"}, "datasetRoot": "chats", "packing": True}
    training = {"seqLength": 65_536, "globalBatchSize": 64}
    run = planned("glm5.2-lora", "kernels", 416, data=data, training=training)
    assert run.plan.context_parallel_size == 1
    sizes = {"contextParallelSize": 2}
    refused = refusal("glm5.2-lora", "kernels", 416, data=data, training=training, parallelism=sizes)
    assert refused.startswith("spec.parallelism.contextParallelSize: 2 with data.packing: ")
    assert refused.endswith("; set 1, or packing: false")


def test_a_published_layout_that_splits_sequences_is_not_used_with_packing() -> None:
    """Its 200,000 tokens would be on one rank: what fits with CP 32 does not without."""
    data = {"volume": {"claimName": "corpus"}, "datasetRoot": "chats"}
    training = {"globalBatchSize": 64}
    assert (
        planned("glm5.2-sft", "kernels", 608, data=data, training=training).plan.context_parallel_size == 32
    )
    refused = refusal("glm5.2-sft", "kernels", 608, data=data | {"packing": True}, training=training)
    assert (
        "the most memory-efficient layout that the planner tries, TP 8, PP 19, CP 1, EP 32, DP 4," in refused
    )


def test_a_length_that_cannot_be_split_is_refused() -> None:
    sizes = {**PP1, "contextParallelSize": 2}
    refused = refusal("glm5.2-sft", "cpu", 2, parallelism=sizes, training={"seqLength": 4098})
    assert refused.startswith("spec.parallelism.contextParallelSize: seqLength 4098 is not divisible by ")


def test_a_run_that_splits_sequences_keeps_its_layout() -> None:
    """Of other functions a plan with CP is one of another recipe."""
    training = {"seqLength": 65_536, "globalBatchSize": 64}
    before = planned("glm5.2-sft", "kernels", 416, training=training).plan
    config, found = kernel_recipes.platform(KERNELS), catalog.load()
    spec = MegatronRecipeSpec.model_validate(
        {
            "recipe": "glm5.2-sft",
            "accelerator": {"type": "kernels", "count": 416},
            "data": kernel_recipes.MOCK,
            "init": kernel_recipes.INIT | kernel_recipes.WEIGHTS,
            "training": training | {"seqLength": 8192},
        }
    )
    after = admit("run", spec, config, found, previous=before).plan
    assert after.context_parallel_size == before.context_parallel_size > 1
