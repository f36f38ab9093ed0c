"""Recipes of engine bridge that pretrain: what they take, and what reaches their function."""

from typing import Any

import pytest
from megatron_contract.bridge_run import BridgeRun
from megatron_operator import catalog, manifests
from megatron_operator.lifecycle.checkpoint_compatibility import checkpoint_contract

from tests.unit.planner.bridge_pretraining_runs import (
    BLEND,
    INIT,
    SOURCES,
    TOKENIZER,
    VOLUME,
    overrides,
    planned,
    refusals,
)

HUB = {"tokenizerType": "HuggingFaceTokenizer", "tokenizerModel": "org/name"}


def test_the_layout_of_a_model_without_estimates_is_the_functions() -> None:
    run = planned("k-exaone-236b-a23b", 128)
    found = BridgeRun.from_arguments(run.arguments).overrides
    assert run.arguments[0] == "exaone_moe_236b_a23b_pretrain_64gpu_h100_bf16_config"
    assert "checkpoint.pretrained_checkpoint" not in found
    assert (found["model.tensor_model_parallel_size"], found["model.pipeline_model_parallel_size"]) == (4, 8)
    assert found["model.expert_model_parallel_size"] == 8
    assert run.plan.data_parallel_size == 4


def test_the_layout_of_a_model_with_estimates_is_planned() -> None:
    run = planned(count=16)
    found = BridgeRun.from_arguments(run.arguments).overrides
    assert run.plan.expected is not None
    assert found["model.recompute_granularity"] == run.plan.recompute_granularity
    assert found["model.sequence_parallel"] is run.plan.sequence_parallel
    assert found["train.micro_batch_size"] == run.plan.micro_batch_size


def test_overlap_stays_the_functions_and_recomputation_is_the_plans() -> None:
    found = overrides("gemma2-2b")
    assert not {path for path in found if "overlap" in path}
    assert found["model.recompute_granularity"] is None
    sizes = {"recomputeGranularity": "full", "recomputeMethod": "block", "recomputeNumLayers": 2}
    assert overrides("gemma2-2b", parallelism=sizes)["model.recompute_num_layers"] == 2


@pytest.mark.parametrize("recipe", ["deepseek-v2-lite", "moonlight-16b-a3b"])
def test_latent_attention_is_trained_on_a_cpu_too(recipe: str) -> None:
    sizes = {"tensorModelParallelSize": 1, "expertModelParallelSize": 2, "sequenceParallel": False}
    training = {"seqLength": 64, "globalBatchSize": 4, "microBatchSize": 1}
    run = planned(recipe, accelerator={"type": "cpu", "count": 2}, parallelism=sizes, training=training)
    assert "model.expert_model_parallel_size=2" in run.arguments


@pytest.mark.parametrize("recipe", ["gemma3-1b", "olmoe-7b"])
def test_a_function_that_has_the_architecture_itself_needs_no_folder(recipe: str) -> None:
    assert "hub.path" not in overrides(recipe, init=None)
    (refused,) = refusals(recipe)
    assert refused.startswith(f"spec.init.modelFolder: has no effect: the function of {recipe}")


def test_heads_that_a_model_normalizes_together_are_not_split_over_ranks() -> None:
    (refused,) = refusals("olmoe-7b", init=None, parallelism={"tensorModelParallelSize": 2})
    assert refused == (
        "spec.parallelism.tensorModelParallelSize: 2 splits queries and keys, which the model normalizes "
        "over all heads; set 1"
    )
    other = planned("moonlight-16b-a3b", parallelism={"tensorModelParallelSize": 2})
    assert other.plan.tensor_model_parallel_size == 2


def test_a_function_that_reads_the_architecture_is_refused_without_a_folder() -> None:
    (refused,) = refusals(init=None)
    assert refused.startswith("spec.init.modelFolder: is not set: the architecture is read from")
    assert "to a volume and name the folder, such as /data/model" in refused
    (refused,) = refusals(init=None, data={"mockData": True})
    assert "to a volume, set data.volume to it and name the folder, such as /data/model" in refused


def test_the_folder_and_the_tokenizer_belong_to_the_checkpoints() -> None:
    run = planned()
    contract = checkpoint_contract(run.resolved, run.plan, run.arguments)
    assert contract["init.modelFolder"] == "/data/model"
    assert contract["data.tokenizer.tokenizerModel"] == "/data/tokenizer"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"peft": {"dim": 4}}, "peft"),
        ({"data": BLEND | {"datasetRoot": "chats"}}, "data.datasetRoot"),
        ({"data": BLEND | {"examples": "chat"}}, "data.examples"),
        ({"data": BLEND | {"prepare": {"source": "/data/raw"}}}, "data.prepare.source"),
        ({"data": BLEND | {"tokenizer": HUB}}, "data.tokenizer.tokenizerModel"),
        ({"data": BLEND | {"tokenizer": {"tokenizerType": "NullTokenizer"}}}, "data.tokenizer.tokenizerType"),
        ({"data": VOLUME | {"tokenizer": TOKENIZER}}, "data"),
        ({"model": {"rotaryBase": 1}}, "model"),
        ({"megatronArgs": {"log-throughput": True}}, "megatronArgs"),
        ({"training": {"bf16": False}}, "training.bf16"),
        ({"parallelism": {"contextParallelSize": 2}}, "parallelism.contextParallelSize"),
        ({"checkpoint": {"asyncSave": True}}, "checkpoint.asyncSave"),
        ({"training": {"trainIters": 100}}, "training.lrWarmupIters"),
    ],
)
def test_a_setting_that_the_function_does_not_take_is_refused_by_its_name(
    spec: dict[str, Any], field: str
) -> None:
    assert [line.partition(":")[0] for line in refusals(**spec)] == [f"spec.{field}"]


IMPORTED: dict[str, Any] = {"from": {"huggingFace": {"path": "/data/base"}}}
EXPORT: dict[str, Any] = {"huggingFace": {"path": "/data/out"}}
CPUS = {"type": "cpu", "count": 2, "perNode": 2}


def words_of(job: dict[str, Any] | None) -> list[str]:
    """Arguments of the Job of a conversion."""
    assert job is not None
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return [str(word) for word in container["args"]]


def test_weights_of_hugging_face_are_imported_and_its_best_and_last_checkpoint_exported() -> None:
    run = planned(
        init=IMPORTED,
        data=BLEND | {"tokenizer": None},
        export=EXPORT | {"when": ["best", "end"]},
        checkpoint={"saveInterval": 500, "keepBest": True},
        training={"trainIters": 4000, "evalInterval": 500, "evalIters": 4},
    )
    found, built = BridgeRun.from_arguments(run.arguments).overrides, manifests.build(run, "")
    assert words_of(built.import_job) == [
        *("import", "--from", "/data/base", "--to", "/data/base-megatron", "--reuse"),
    ]
    assert found["checkpoint.pretrained_checkpoint"] == "/data/base-megatron"
    assert (found["hub.path"], found["tokenizer.tokenizer_model"]) == ("/data/base", "/data/base")
    assert "tokenizer.use_tokenizer_vocab_size" not in found
    exported = ["export", "--from", "/checkpoints/run", "--to"]
    reused, base = ["--reuse", "--parents"], ["--base", "/data/base"]
    assert words_of(built.export_job) == [*exported, "/data/out/end", *reused, *base]
    best = ["--iteration", "best", "--link", "/data/out/end"]
    assert words_of(built.export_best_job) == [*exported, "/data/out/best", *reused, *best, *base]
    assert checkpoint_contract(run.resolved, run.plan, run.arguments)["init.modelFolder"] == "/data/base"


def test_a_folder_is_imported_by_a_function_that_has_the_architecture_itself() -> None:
    found = overrides("olmoe-7b", init=IMPORTED, data=SOURCES)
    assert (found["hub.path"], found["tokenizer.tokenizer_model"]) == ("/data/base", "/data/base")


def test_a_run_from_random_weights_that_is_exported_has_the_vocabulary_of_the_model() -> None:
    """The tokenizer may have fewer tokens, and the export needs the rows that config.json names."""
    run = planned(export=EXPORT)
    found = BridgeRun.from_arguments(run.arguments).overrides
    assert found["tokenizer.use_tokenizer_vocab_size"] is False
    assert "tokenizer.use_tokenizer_vocab_size" not in overrides()
    words = words_of(manifests.build(run, "").export_job)
    assert words[words.index("--base") + 1] == "/data/model"


@pytest.mark.parametrize(
    "source",
    [{"recipe": "first"}, {"megatron": {"path": "/data/first"}}, {"huggingFace": {"path": "/data/base"}}],
)
def test_the_trainer_compares_the_rows_of_a_run_with_those_that_its_export_needs(
    source: dict[str, Any],
) -> None:
    """Before it trains: those of a checkpoint with a tokenizer's vocabulary are kept, and may be fewer."""
    run = {"data": BLEND, "init": INIT | {"from": source}, "checkpoint": {"volume": {"claimName": "runs"}}}
    base = "/data/base" if "huggingFace" in source else "/data/model"
    found = overrides(export=EXPORT, **run)
    assert found["hub.export_base"] == base
    assert "tokenizer.use_tokenizer_vocab_size" not in found
    assert "hub.export_base" not in overrides(**run)
    tuned = run | {"data": VOLUME | {"datasetRoot": "answers"}}
    for recipe, needed in (("gemma2-2b-lora", base != "/data/base"), ("gemma2-2b-sft", False)):
        merged = EXPORT | ({"merge": True} if recipe.endswith("lora") else {})
        assert ("hub.export_base" in overrides(recipe, export=merged, **tuned)) is needed


def test_an_export_of_a_function_with_its_own_architecture_names_the_base_that_it_is_compared_with() -> None:
    base = {"huggingFace": {"path": "/data/out", "base": "/data/base"}}
    assert overrides("olmoe-7b", init=None, export=base)["hub.path"] == "/data/base"
    assert refusals("olmoe-7b", init=None, export=EXPORT) == [
        "spec.export.huggingFace.base: is not set: config.json and tokenizer of the result are copied from "
        "it; name a folder with both, such as /data/model, or set init.from.huggingFace"
    ]
    assert refusals(export=base) == [
        "spec.export.huggingFace.base: has no effect: init.modelFolder is the base; leave it out"
    ]


@pytest.mark.parametrize(
    "recipe",
    ["gemma4-e4b", "minimax-m3", "qwen3.5-9b", "qwen3.5-35b-a3b"],
)
def test_weights_of_a_model_whose_text_alone_is_trained_are_not_converted(recipe: str) -> None:
    reason = "its function trains the text part alone, and a conversion is of the whole model"
    fix = "leave it out; docs/bridge-pretraining.md lists the recipes whose weights are not converted"
    found = refusals(recipe, init=IMPORTED, export=EXPORT, accelerator=CPUS)
    for field in ("init.from.huggingFace.path", "export"):
        assert f"spec.{field}: weights of {recipe} are not converted: {reason}; {fix}" in found


def test_a_plain_gpt_of_no_published_model_is_neither_imported_nor_exported() -> None:
    sizes = {"numLayers": 2, "hiddenSize": 64, "numAttentionHeads": 4, "vocabSize": 1000}
    found = refusals("vanilla-gpt", init=IMPORTED, export=EXPORT, model=sizes)
    reason = "transformers has no model with these layers"
    assert [line for line in found if reason in line and line.startswith("spec.init.from.huggingFace.path")]
    assert [line for line in found if reason in line and line.startswith("spec.export")]


@pytest.mark.parametrize(
    "source", [{"recipe": "first-half"}, {"megatron": {"path": "/checkpoints/first-half"}}]
)
def test_a_run_starts_from_the_weights_of_another_one(source: dict[str, Any]) -> None:
    found = overrides(init=INIT | {"from": source}, checkpoint={"volume": {"claimName": "runs"}})
    assert found["checkpoint.pretrained_checkpoint"] == "/checkpoints/first-half"


def test_checkpoints_of_an_elastic_run_load_in_any_layout() -> None:
    elastic = planned(recovery={"elastic": {"minCount": 8}})
    for run, reshardable in ((elastic, "true"), (planned(), "false")):
        found = BridgeRun.from_arguments(run.arguments).overrides
        assert found.get("checkpoint.dist_ckpt_optim_fully_reshardable", False) is (reshardable == "true")
        contract = checkpoint_contract(run.resolved, run.plan, run.arguments)
        assert contract["optimizerReshardable"] == reshardable


def test_on_a_cpu_sequences_are_split_where_a_recipe_sets_it_and_not_where_its_function_does() -> None:
    cpu, sizes = {"type": "cpu", "count": 2}, {"tensorModelParallelSize": 2}
    asked = sizes | {"sequenceParallel": True}
    run = planned("exaone4-1.2b", accelerator=cpu, parallelism=sizes)
    assert run.plan.sequence_parallel is False
    assert "sequenceParallel off: TP is 2, but on CPUs only experts require it" in run.plan.notes
    assert overrides("exaone4-1.2b", accelerator=cpu, parallelism=asked)["model.sequence_parallel"] is True
    refused = refusals("deepseek-v4-flash", accelerator=cpu, parallelism=asked)
    assert refused[0].startswith("spec.parallelism.sequenceParallel: is not supported on platform cpu: ")


def test_on_a_cpu_experts_at_tensor_parallel_ranks_need_a_model_that_was_tried_so() -> None:
    cpu, sizes = {"type": "cpu", "count": 2}, {"tensorModelParallelSize": 2}
    init = {"modelFolder": "/data/model", "from": {"megatron": {"path": "/data/weights"}}}
    data = {"volume": {"claimName": "corpus"}, "datasetRoot": "samples"}
    training = {"seqLength": 64, "globalBatchSize": 4, "microBatchSize": 1, "trainIters": 100}
    run = planned(
        "glm4.5-air-sft", accelerator=cpu, parallelism=sizes, init=init, data=data, training=training
    )
    assert run.plan.sequence_parallel is True
    assert "sequenceParallel on: TP is 2, which experts require it with" in run.plan.notes
    [refused] = refusals("gpt-oss-20b-sft", accelerator=cpu, parallelism=sizes, init=init, data=data)
    assert refused == (
        "spec.parallelism.tensorModelParallelSize: TP 2 with experts requires sequence parallelism, which is "
        "off here; set 1"
    )


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        ("nemotron-h-8b", "on GPUs the trainer's image lacks kernels that it needs: mamba-ssm"),
        ("qwen3-next-80b-a3b", "on GPUs the trainer's image lacks kernels that it needs: flash-linear"),
        ("glm5.2", "on GPUs the trainer's image lacks kernels that it needs: flash-mla"),
        ("qwen3.5-vl-9b", "on GPUs the trainer's image lacks kernels that it needs: flash-linear"),
    ],
)
def test_an_architecture_that_is_not_started_is_refused_by_the_reason(recipe: str, reason: str) -> None:
    published = catalog.load().get(recipe).layouts[0]
    accelerator = {"type": published.accelerators[0], "count": published.count}
    (refused,) = refusals(recipe, accelerator=accelerator, data={"mockData": True}, init=None)
    assert f" and not started: {reason}" in refused


GPT: dict[str, Any] = {"numLayers": 4, "hiddenSize": 256, "numAttentionHeads": 4, "vocabSize": 1000}


def test_the_sizes_that_a_function_leaves_open_are_the_recipes() -> None:
    model = GPT | {"swiglu": True, "disableBiasLinear": True, "positionEmbeddingType": "rope"}
    run = planned("vanilla-gpt", 2, init=None, model=model, parallelism={"tensorModelParallelSize": 2})
    found = BridgeRun.from_arguments(run.arguments).overrides
    assert (found["model.num_layers"], found["model.hidden_size"]) == (4, 256)
    # Megatron's width of a gated layer: 2/3 of 4 x 256, rounded down to a multiple of 64.
    assert (found["model.activation_func"], found["model.ffn_hidden_size"]) == ("silu", 640)
    assert (found["model.gated_linear_unit"], found["model.add_bias_linear"]) == (True, False)
    # 1000 entries, padded to a multiple of 128 x TP 2.
    assert found["model.vocab_size"] == 1024
    # Embedding, which is the output layer too; norms with a bias, and attention and MLP with those of QKV.
    layer = 4 * 256 * 256 + 3 * 256 * 640 + 4 * 256
    assert run.plan.parameters == 1000 * 256 + 4 * layer + 2 * 256


def test_a_function_that_leaves_sizes_open_is_refused_without_them() -> None:
    assert [line.partition(":")[0] for line in refusals("vanilla-gpt", init=None)] == [
        f"spec.model.{leaf}" for leaf in GPT
    ]


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"numExperts": 4}, "numExperts: is not passed to Megatron-Bridge, whose function builds a plain"),
        ({"windowSize": "16,0"}, "windowSize: is not passed to Megatron-Bridge"),
        ({"maxPositionEmbeddings": 2048}, "maxPositionEmbeddings: has no effect: Megatron-Bridge gives"),
        ({"positionEmbeddingType": "yarn"}, "positionEmbeddingType: yarn is not passed"),
    ],
)
def test_what_a_plain_gpt_does_not_get_is_refused(setting: dict[str, Any], reason: str) -> None:
    (refused,) = refusals("vanilla-gpt", init=None, model=GPT | setting)
    assert refused.startswith(f"spec.model.{reason}")
