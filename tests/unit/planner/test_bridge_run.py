"""Recipes of engine bridge that the operator starts: their settings as overrides of a function."""

from typing import Any

import pytest
from megatron_contract.bridge_run import BridgeRun, Value
from megatron_operator import catalog, manifests
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.planner import PlannedRun, admit
from megatron_trainer.data import chats_command
from megatron_trainer.data.media import IMAGES
from megatron_trainer.data.objects import AWS

PROFILES: dict[str, Any] = {"accelerators": {"h100-sxm": {"image": "of-the-profile"}}}
INIT: dict[str, Any] = {"modelFolder": "/data/model", "from": {"megatron": {"path": "/data/weights"}}}
FILES: dict[str, Any] = {"volume": {"claimName": "corpus"}, "datasetRoot": "chats"}


def planned(recipe: str, count: int = 8, platform: dict[str, Any] | None = None, **spec: Any) -> PlannedRun:
    asked = {"recipe": recipe, "accelerator": {"count": count}, "init": INIT, "data": FILES} | spec
    config = PlatformConfig.model_validate(PROFILES | (platform or {"bridgeImage": "bridge"}))
    return admit("run", MegatronRecipeSpec.model_validate(asked), config, catalog.load())


def overrides(recipe: str, count: int = 8, **spec: Any) -> dict[str, Value]:
    return dict(BridgeRun.from_arguments(planned(recipe, count, **spec).arguments).overrides)


def refusals(recipe: str, count: int = 8, platform: dict[str, Any] | None = None, **spec: Any) -> list[str]:
    with pytest.raises(InvalidRecipeError) as refused:
        manifests.build(planned(recipe, count, platform, **spec), "")
    return [f"{error.field}: {error.message}; {error.fix}" for error in refused.value.errors]


def test_the_layout_of_the_plan_reaches_the_function() -> None:
    run = planned("llama3.1-70b-sft", 64)
    found = BridgeRun.from_arguments(run.arguments).overrides
    assert found["model.tensor_model_parallel_size"] == run.plan.tensor_model_parallel_size > 1
    assert found["model.pipeline_model_parallel_size"] == run.plan.pipeline_model_parallel_size
    assert found["model.sequence_parallel"] is True
    assert found["train.micro_batch_size"] == run.plan.micro_batch_size
    assert found["ddp.use_distributed_optimizer"] is found["optimizer.use_distributed_optimizer"] is True


def test_nothing_overlaps_and_no_sequence_is_split_as_in_the_functions() -> None:
    run = planned("llama3.1-8b-sft", 64)
    found = BridgeRun.from_arguments(run.arguments).overrides
    assert found["ddp.overlap_grad_reduce"] is found["ddp.overlap_param_gather"] is False
    assert run.plan.overlap_grad_reduce is run.plan.overlap_param_gather is False
    assert run.plan.context_parallel_size == found["model.context_parallel_size"] == 1


def test_settings_of_the_recipe_replace_those_of_the_function() -> None:
    found = overrides(
        "llama3.1-8b-sft",
        training={"lr": 2e-5, "trainIters": 40, "lrWarmupIters": 3, "seed": 7, "evalIters": 0},
        checkpoint={"saveInterval": 20},
        recovery={"hangTimeout": "off"},
    )
    assert (found["optimizer.lr"], found["train.train_iters"]) == (2e-5, 40)
    assert (found["scheduler.lr_warmup_iters"], found["rng.seed"]) == (3, 7)
    assert (found["checkpoint.save_interval"], found["checkpoint.save"]) == (20, "/checkpoints/run")
    assert found["dataset.do_validation"] is False
    assert "dist.distributed_timeout_minutes" not in found
    assert not [path for path in found if path.endswith("weight_decay")]


@pytest.mark.parametrize(
    ("recipe", "spec", "seen"),
    [
        ("llama3.2-1b-lora", {"peft": {"dim": 8}}, "; seen on one H200"),
        ("llama3.2-1b-lora", {"peft": {"type": "dora"}}, "; not seen on GPUs yet"),
        ("llama3.2-1b-lora", {"accelerator": {"type": "cpu", "count": 2, "perNode": 2}}, ""),
        ("llama3.1-8b-lora", {}, "; not seen on GPUs yet"),
    ],
)
def test_a_note_has_what_was_seen_of_the_adapters_on_this_kind_of_accelerator(
    recipe: str, spec: dict[str, Any], seen: str
) -> None:
    accelerators = {"h100-sxm": {}, "cpu": {"platform": "cpu"}}
    platform = {"bridgeImage": "bridge", "accelerators": accelerators}
    run = planned(recipe, platform=platform, **{"accelerator": {"type": "h100-sxm", "count": 8}} | spec)
    (note,) = [each for each in run.plan.notes if each.startswith("run by Megatron-Bridge")]
    assert note.partition(")")[2] == seen


def test_a_length_in_tokens_becomes_iterations() -> None:
    training = {"trainTokens": "100M", "globalBatchSize": 64}
    assert overrides("llama3.1-8b-sft", training=training)["train.train_iters"] == 381


@pytest.mark.parametrize(
    ("training", "is_noted"), [({}, True), ({"trainIters": 700}, False), ({"trainTokens": "100M"}, False)]
)
def test_a_length_that_only_the_function_has_is_pointed_out(training: dict[str, Any], is_noted: bool) -> None:
    notes = planned("llama3.1-8b-sft", training=training).plan.notes
    found = [each for each in notes if each.startswith("training.trainIters ")]
    expected = "is that of llama31_8b_sft_2gpu_h100_bf16_config, 8,000 samples"
    assert [expected in each for each in found] == ([True] if is_noted else [])


def test_adapters_are_those_of_the_function_unless_the_recipe_sets_them() -> None:
    found = overrides("llama3.1-8b-lora", peft={"type": "dora", "targetModules": ["linear_qkv"]})
    assert (found["peft.scheme"], found["peft.dim"], found["peft.alpha"]) == ("dora", 8, 16)
    assert found["peft.target_modules"] == ["linear_qkv"]
    assert overrides("llama3.1-405b-lora", 32)["peft.target_modules"] == ["linear_qkv"]
    assert "peft.dim" not in overrides("llama3.1-8b-sft")


def test_weights_model_and_samples_are_read_from_volumes() -> None:
    found = overrides("llama3.1-8b-lora")
    assert found["checkpoint.pretrained_checkpoint"] == "/data/weights"
    assert found["hub.path"] == found["tokenizer.tokenizer_model"] == "/data/model"
    assert found["dataset.dataset_root"] == "/data/chats"
    assert found["dataset.hf_dataset"] is None
    assert found["dataset.dataset_kwargs"] == {
        "pad_to_max_length": True,
        "index_mapping_dir": "/checkpoints/run/data-cache",
    }


def test_lines_are_questions_and_answers_unless_the_recipe_names_chats() -> None:
    assert overrides("llama3.1-8b-lora")["dataset.chats"] is False
    assert overrides("llama3.1-8b-lora", data=FILES | {"examples": "chat"})["dataset.chats"] is True


SOURCES: dict[str, Any] = {
    "volume": {"claimName": "corpus"},
    "sources": [{"path": "/data/raw/*.jsonl", "format": "chat"}],
}


def test_a_run_reads_what_its_job_prepares_with_the_tokenizer_of_the_run() -> None:
    training = {"globalBatchSize": 16, "trainIters": 400, "seqLength": 2048}
    run = planned("llama3.1-8b-lora", data=SOURCES | {"maxEpochs": 2}, training=training)
    found = BridgeRun.from_arguments(run.arguments).overrides
    job = manifests.build(run, "").prepare_job
    assert job is not None
    (container,) = job["spec"]["template"]["spec"]["containers"]
    args = chats_command._parse(container["args"])
    assert (container["image"], found["dataset.chats"]) == ("bridge", True)
    assert str(args.output) == found["dataset.dataset_root"]
    assert str(args.tokenizer_dir) == found["tokenizer.tokenizer_model"] == "/data/model"
    assert (args.seq_length, args.batch, args.samples, args.max_epochs) == (2048, 16, 6400, 2)
    assert args.evaluates is True


@pytest.mark.parametrize(
    "change",
    [
        {"data": SOURCES | {"split": "90,10,0"}},
        {"data": SOURCES | {"sources": [SOURCES["sources"][0] | {"documents": 3}]}},
        {"data": SOURCES | {"tokenizer": {"tokenizerModel": "/data/other"}}},
        {"training": {"seqLength": 1024}},
    ],
)
def test_what_chats_depend_on_is_in_the_name_of_their_folder(change: dict[str, Any]) -> None:
    before = overrides("llama3.1-8b-lora", data=SOURCES)["dataset.dataset_root"]
    assert overrides("llama3.1-8b-lora", **({"data": SOURCES} | change))["dataset.dataset_root"] != before
    longer = overrides("llama3.1-8b-lora", data=SOURCES, training={"trainIters": 700})
    assert longer["dataset.dataset_root"] == before


MIXED: dict[str, Any] = SOURCES | {
    "sources": [
        {"path": "s3://corpus/chat/*.jsonl.zst", "format": "chat", "weight": 0.8},
        {"path": "/data/raw/docs.parquet", "column": "body", "weight": 0.2},
    ]
}


def test_chats_and_text_are_mixed_by_weight() -> None:
    run = planned("llama3.1-8b-lora", data=MIXED)
    found = BridgeRun.from_arguments(run.arguments).overrides
    assert (found["dataset.blend"], found["dataset.chats"]) == (True, True)
    job = manifests.build(run, "").prepare_job
    assert job is not None
    (container,) = job["spec"]["template"]["spec"]["containers"]
    args = chats_command._parse(container["args"])
    chats, documents = chats_command._sources(args.chats, "chat", args.output, AWS, IMAGES)
    assert (chats.format, chats.weight, chats.is_text) == ("chat", 0.8, False)
    assert (documents.format, documents.key, documents.weight) == ("parquet", "body", 0.2)
    assert any(
        note.startswith(
            "samples for training must be at least 6,400 of data.sources[0], 1,600 of data.sources[1]"
        )
        for note in run.plan.notes
    )


def test_sources_without_weights_are_not_read_by_weight() -> None:
    listed = [{key: value for key, value in each.items() if key != "weight"} for each in MIXED["sources"]]
    assert "dataset.blend" not in overrides("llama3.1-8b-lora", data=MIXED | {"sources": listed})


def test_weights_and_where_the_text_is_are_in_the_name_of_the_folder() -> None:
    chats, documents = MIXED["sources"]
    changes: list[dict[str, Any]] = [{}, {"weight": 0.3}, {"column": "text"}]
    folders = {
        str(
            overrides("llama3.1-8b-lora", data=MIXED | {"sources": [chats, documents | change]})[
                "dataset.dataset_root"
            ]
        )
        for change in changes
    }
    assert len(folders) == len(changes)


@pytest.mark.parametrize(("epochs", "needed"), [(None, "8,000"), (3, "2,672")])
def test_the_plan_has_the_number_of_conversations_that_the_preparation_asks_for(
    epochs: int | None, needed: str
) -> None:
    """An epoch has whole batches: 1,000 iterations in 3 epochs are 334 in each."""
    data = SOURCES | ({} if epochs is None else {"maxEpochs": epochs})
    notes = planned("llama3.1-8b-lora", 8, data=data).plan.notes
    assert any(f"at least {needed} conversations for training" in note for note in notes)


def test_random_tokens_replace_the_data_set() -> None:
    found = overrides("llama3.1-8b-lora", data={"volume": {"claimName": "corpus"}, "mockData": True})
    assert found["dataset.mock"] is True
    assert "dataset.dataset_root" not in found


def test_another_tokenizer_is_used_where_one_is_named() -> None:
    tokenizer = {"tokenizerModel": "/data/longer"}
    found = overrides("llama3.1-8b-lora", data=FILES | {"tokenizer": tokenizer})
    assert found["tokenizer.tokenizer_model"] == "/data/longer"
    assert found["tokenizer.tokenizer_type"] == "HuggingFaceTokenizer"
    assert found["hub.path"] == "/data/model"


def test_pods_have_the_image_with_bridge_and_its_engine() -> None:
    job = manifests.build(planned("llama3.1-8b-lora", 1), "").job
    (container,) = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
    assert container["image"] == "bridge"
    assert {"name": "MEGATRON_ENGINE", "value": "bridge"} in container["env"]


def test_without_a_bridge_image_the_recipe_is_refused() -> None:
    (refused,) = refusals("llama3.1-8b-lora", 1, {"image": "other"})
    assert refused.startswith("spec.image: the recipe needs a trainer image with Megatron-Bridge, and ")
    assert "platform.bridgeImage is not set" in refused
    built = manifests.build(planned("llama3.1-8b-lora", 1, {"image": "other"}, image="own"), "")
    assert "own" in str(built.job)


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        (
            "nemotron-nano2-vl-12b-lora",
            "on GPUs the trainer's image lacks kernels that it needs: mamba-ssm",
        ),
    ],
)
def test_a_model_that_does_not_start_is_refused_by_the_reason(recipe: str, reason: str) -> None:
    (refused,) = refusals(recipe, 32, data={"mockData": True}, init=None)
    assert f" and not started: {reason};" in refused


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("qwen3_600m_sft_8gpu_h100_bf16_128k_config", "splits samples over ranks"),
        ("gpt_oss_20b_sft_8gpu_h100_fp8cs_config", "trains in fp8cs"),
        ("gpt_oss_20b_sft_8gpu_h100_bf16_32k_config", "is not in the image's release of Megatron-Bridge"),
    ],
)
def test_a_function_of_a_started_model_that_is_not_run_is_named(function: str, reason: str) -> None:
    (refused,) = refusals(function, 64)
    assert f"{function} {reason}, and the trainer image does not start it" in refused


def test_a_recipe_is_started_by_a_function_that_is_run_though_another_one_is_for_this_count() -> None:
    assert planned("qwen3-8b-sft", 8).arguments[0] == "qwen3_8b_sft_4gpu_h100_bf16_config"


def test_experts_are_split_as_planned() -> None:
    run = planned("qwen3-30b-a3b-sft", 16)
    found = BridgeRun.from_arguments(run.arguments).overrides
    assert found["model.expert_model_parallel_size"] == run.plan.expert_model_parallel_size > 1
    assert found["model.expert_tensor_parallel_size"] == run.plan.expert_tensor_parallel_size
    assert "model.expert_model_parallel_size" not in overrides("qwen3-8b-sft")


@pytest.mark.parametrize(("recipe", "count"), [("gpt-oss-20b-lora", 8), ("qwen3-30b-a3b-lora", 8)])
def test_adapters_of_models_with_experts_are_on_attention(recipe: str, count: int) -> None:
    assert overrides(recipe, count)["peft.target_modules"] == ["linear_qkv", "linear_proj"]
    with pytest.raises(InvalidRecipeError) as refused:
        planned(recipe, count, peft={"targetModules": ["linear_qkv", "linear_fc1"]})
    (error,) = refused.value.errors
    assert error.field == "spec.peft.targetModules"
    assert error.message.startswith("linear_fc1 ")
    assert error.fix.startswith("set linear_qkv, linear_proj")


def test_a_function_that_measures_throughput_is_not_started() -> None:
    (name,) = [x.function for x in catalog.load().get("llama3-70b-lora").layouts if x.benchmark][:1]
    (refused,) = refusals(str(name), 64)
    assert f"{name} measures throughput" in refused
    assert "name the recipe instead: llama3-70b-lora" in refused


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"training": {"bf16": False}}, "training.bf16"),
        ({"training": {"lrWarmupFraction": 0.1}}, "training.lrWarmupFraction"),
        ({"parallelism": {"contextParallelSize": 2}}, "parallelism.contextParallelSize"),
        ({"parallelism": {"useDistributedOptimizer": False}}, "parallelism.useDistributedOptimizer"),
        ({"model": {"rotaryBase": 1}}, "model"),
        ({"megatronArgs": {"log-throughput": True}}, "megatronArgs"),
        ({"checkpoint": {"asyncSave": True}}, "checkpoint.asyncSave"),
        ({"checkpoint": {"local": {"sizeLimit": "1Ti", "saveInterval": 5}}}, "checkpoint.local"),
        (
            {
                "recovery": {"elastic": {"minCount": 8}},
                "peft": {"type": "dora", "targetModules": ["linear_fc1"]},
            },
            "recovery.elastic",
        ),
        ({"data": FILES | {"split": "9,1,0"}}, "data.split"),
        ({"data": FILES | {"dataloaderType": "cyclic"}}, "data.dataloaderType"),
        ({"data": {"volume": {"claimName": "c"}, "blend": [{"path": "x"}]}}, "data.blend"),
        ({"data": FILES | {"tokenizer": {"tokenizerType": "NullTokenizer"}}}, "data.tokenizer.tokenizerType"),
        ({"data": FILES | {"tokenizer": {"tokenizerModel": "meta/llama"}}}, "data.tokenizer.tokenizerModel"),
        ({"init": INIT | {"modelFolder": "/elsewhere"}}, "init.modelFolder"),
        ({"init": INIT | {"from": {"megatron": {"path": "/x"}}}}, "init.from.megatron.path"),
    ],
)
def test_a_setting_that_the_function_does_not_take_is_refused_by_its_name(
    spec: dict[str, Any], field: str
) -> None:
    assert [line.partition(":")[0] for line in refusals("llama3.1-8b-lora", **spec)] == [f"spec.{field}"]


@pytest.mark.parametrize(
    ("training", "fix"),
    [
        ({"trainIters": 500, "lrWarmupFraction": 0.03}, "set training.lrWarmupIters (15 of 500)"),
        (
            {"trainIters": 500, "lrDecayIters": 400, "lrWarmupFraction": 0.03},
            "set training.lrWarmupIters (12 of 400)",
        ),
        ({"trainIters": 30, "lrWarmupFraction": 0.01}, "set training.lrWarmupIters (1 of 30)"),
        ({"trainIters": 1, "lrWarmupFraction": 0.01}, "set training.lrWarmupIters (0 of 1)"),
        ({"trainTokens": "1B", "lrWarmupFraction": 0.03}, "set training.lrWarmupIters"),
        (
            {"trainSamples": 64_000, "lrWarmupSamples": 64},
            "set training.trainIters and training.lrWarmupIters",
        ),
    ],
)
def test_a_warm_up_that_functions_do_not_take_names_the_one_that_they_do(
    training: dict[str, Any], fix: str
) -> None:
    (line,) = refusals("llama3.1-8b-lora", training=training)
    assert line.endswith(f"; {fix}")


def test_a_precision_and_a_ramp_up_that_functions_do_not_take_are_refused_with_their_reason() -> None:
    training = {"fp8Format": "hybrid", "fp8Recipe": "tensorwise", "stepBatchSizeSchedule": "0:64 1B:128"}
    function = "llama31_8b_peft_1gpu_h100_bf16_config"
    assert refusals("llama3.1-8b-lora", training=training)[:3] == [
        "spec.training.stepBatchSizeSchedule: is not passed to Megatron-Bridge, whose functions train with"
        " one batch size; leave it out",
        f"spec.training.fp8Recipe: is not passed to Megatron-Bridge: {function} trains in bf16; leave it out",
        f"spec.training.fp8Format: hybrid is not the precision of {function} (bf16); leave it out",
    ]


def test_sections_that_no_function_takes_are_refused_with_a_fix_that_helps() -> None:
    lines = refusals("llama3.1-8b-lora", model={"rotaryBase": 1}, megatronArgs={"log-throughput": True})
    assert lines == [
        "spec.model: is not passed to Megatron-Bridge: its function builds the model; leave it out",
        "spec.megatronArgs: is not passed to Megatron-Bridge, which does not take the flags of Megatron"
        " Core's loop; leave it out",
    ]


@pytest.mark.parametrize("recipe", ["llama3.1-8b-lora", "qwen3.5-vl-9b-sft"])
def test_a_decay_at_the_end_is_refused_since_its_length_cannot_be_set(recipe: str) -> None:
    lines = refusals(recipe, training={"lrDecayStyle": "WSD"})
    assert any(line.startswith("spec.training.lrDecayStyle: WSD decays at the end") for line in lines)


def test_a_folder_on_a_volume_of_the_profile_is_accepted() -> None:
    mounts = {
        "volumes": [{"name": "models", "hostPath": {"path": "/mnt/models"}}],
        "volumeMounts": [{"name": "models", "mountPath": "/models"}],
    }
    platform = {"bridgeImage": "b", "accelerators": {"h100-sxm": {"podTemplate": mounts}}}
    run = planned("llama3.1-8b-lora", 1, platform, init=INIT | {"modelFolder": "/models/llama"})
    assert 'hub.path="/models/llama"' in run.arguments


def test_adam_in_place_of_another_optimizer_has_the_decays_of_the_recipe() -> None:
    images = {"volume": {"claimName": "corpus"}, "mockData": True}
    training = {"trainIters": 10, "lrWarmupIters": 1}
    found = overrides("kimi-k2.5-vl-sft", 1024, data=images, training=training)
    assert found["optimizer.optimizer"] == "adam"
    assert (found["optimizer.adam_beta1"], found["optimizer.adam_beta2"]) == (0.9, 0.95)
