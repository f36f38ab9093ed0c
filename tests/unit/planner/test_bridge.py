"""Recipes of engine bridge: their layout, the command that starts them, and that no job is created."""

from typing import Any

import pytest
from megatron_operator import manifests
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.api.status import Plan
from megatron_operator.api.training import TrainingSpec
from megatron_operator.catalog import ResolvedRecipe, load, resolve
from megatron_operator.catalog.architecture import Architecture
from megatron_operator.cli.default_platform import default_platform
from megatron_operator.planner import PlannedRun, megatron_arguments, plan, plan_and_alternatives

NOT_STARTED = "this operator does not start its loop yet, and the command is untested on hardware"


def resolved(recipe: str, count: int, accelerator: str = "h100-sxm", **spec: Any) -> ResolvedRecipe:
    asked = {"recipe": recipe, "accelerator": {"type": accelerator, "count": count}} | spec
    return resolve(MegatronRecipeSpec.model_validate(asked), default_platform(), load())


def without_estimates(recipe: str, count: int) -> ResolvedRecipe:
    """The recipe, as if the planner had no model of its architecture."""
    unknown = Architecture(not_estimated="nobody knows its layers")
    return resolved(recipe, count).model_copy(update={"model": unknown})


def layout(p: Plan) -> tuple[int, ...]:
    return (
        p.tensor_model_parallel_size,
        p.pipeline_model_parallel_size,
        p.context_parallel_size,
        p.expert_model_parallel_size,
        p.data_parallel_size,
    )


def test_a_model_without_estimates_keeps_its_functions_layout() -> None:
    p = plan(without_estimates("nemotron_omni_cord_v2_sft_4gpu_h100_bf16_config", 8))
    assert layout(p) == (4, 1, 1, 1, 2)
    assert (p.micro_batch_size, p.global_batch_size, p.gradient_accumulation) == (1, 64, 32)
    assert p.parameters is p.memory_per_gpu is p.expected is p.flops_per_token is None
    assert "does not start it while imageHas of profile h100-sxm lacks mamba-ssm" in p.notes[-1]
    assert "parameters, memory and speed of this model are not estimated: nobody knows its layers" in p.notes


def test_the_layout_of_a_model_without_estimates_needs_a_multiple_of_its_sizes() -> None:
    with pytest.raises(InvalidRecipeError) as refused:
        plan(without_estimates("glm5.2", 40))
    (error,) = refused.value.errors
    assert error.field == "spec.accelerator.count"
    assert error.message.startswith("40 is not a multiple of 416, which TP 1 x PP 13 x CP 1 and EP 32")


def test_a_started_function_of_an_optimizer_that_the_image_lacks_trains_with_adam() -> None:
    r = resolved("kimi-k2.5-vl-sft", 1024)
    assert r.training.optimizer == "adam"
    assert "kimi_k25_vl_sft_512gpu_h100_bf16_config trains with dist_muon; here it is adam" in r.notes


def test_additional_accelerators_are_data_parallel() -> None:
    p = plan(resolved("wan2.1-14b-sft", 32, training={"globalBatchSize": 64}))
    few = plan(resolved("wan2.1-14b-sft", 8, training={"globalBatchSize": 64}))
    assert layout(p)[:4] == layout(few)[:4]
    assert p.data_parallel_size == 4 * few.data_parallel_size


def test_fine_tuning_all_weights_of_a_modelled_model_is_estimated() -> None:
    p, others = plan_and_alternatives(resolved("llama3-8b-sft", 16))
    assert p.parameters == 8030261248
    assert p.memory_per_gpu is not None
    assert p.expected is not None
    assert others == []


def test_a_published_layout_that_the_planner_rejects_is_kept_with_a_note() -> None:
    p = plan(resolved("llama31_405b_sft_128gpu_h100_bf16_config", 128))
    assert p.tensor_model_parallel_size == 8
    assert p.pipeline_model_parallel_size == 16


@pytest.mark.parametrize(
    ("recipe", "count", "field", "message"),
    [
        ("wan2.1-14b", 12, "spec.accelerator.count", "is not a multiple of the 8 accelerators of a node"),
        ("wan2.1-14b", 24, "spec.training.globalBatchSize", "is not a multiple of microBatchSize 1 x DP"),
    ],
)
def test_sizes_that_do_not_suit_the_count_are_rejected(
    recipe: str, count: int, field: str, message: str
) -> None:
    with pytest.raises(InvalidRecipeError) as refused:
        plan(resolved(recipe, count))
    assert message in {error.field: error.message for error in refused.value.errors}[field]


def test_the_command_omits_what_the_function_sets() -> None:
    r = resolved("qwen35_vl_2b_peft_1gpu_h100_bf16_config", 1)
    assert megatron_arguments(r, plan(r), "run") == [
        *("torchrun", "--nnodes", "1", "--nproc-per-node", "1", "scripts/training/run_recipe.py"),
        *("--recipe", "qwen35_vl_2b_peft_1gpu_h100_bf16_config", "--mode", "lora"),
        *("--save_dir", "/checkpoints/run", "--load_dir", "/checkpoints/run"),
    ]


def test_changes_of_the_recipe_are_in_the_command() -> None:
    r = resolved(
        "qwen3.5-vl-9b-sft",
        16,
        parallelism={"tensorModelParallelSize": 2, "sequenceParallel": True},
        training={"globalBatchSize": 64, "lr": 1e-5, "trainIters": 200, "lrWarmupIters": 7},
        checkpoint={"saveInterval": 50},
    )
    words = megatron_arguments(r, plan(r), "run")
    assert words[:6] == [
        "torchrun",
        "--nnodes",
        "2",
        "--nproc-per-node",
        "8",
        "scripts/training/run_recipe.py",
    ]
    options = dict(zip(words[6:-1:2], words[7::2], strict=False))
    assert options["--tensor_model_parallel_size"] == "2"
    assert options["--global_batch_size"] == "64"
    assert options["--lr"] == "1e-05"
    assert (options["--max_steps"], options["--save_interval"]) == ("200", "50")
    assert words[-3:] == [
        "model.sequence_parallel=true",
        "scheduler.lr_warmup_iters=7",
        "scheduler.lr_decay_iters=null",
    ]


def test_no_warm_up_and_a_rate_that_falls_to_none_are_in_the_command() -> None:
    r = resolved("qwen3.5-vl-9b-sft", 8, training={"lrWarmupIters": 0, "minLr": 0})
    own = r.function.training if r.function else TrainingSpec()
    assert own.lr_warmup_iters
    assert own.min_lr
    words = megatron_arguments(r, plan(r), "run")
    assert {"scheduler.lr_warmup_iters=0", "optimizer.min_lr=0.0"} <= {*words}


def test_a_different_stage_split_is_in_the_command() -> None:
    r = resolved("qwen3-235b-a22b-sft", 256, parallelism={"pipelineModelParallelSize": 2})
    words = megatron_arguments(r, plan(r), "run")
    assert "model.account_for_embedding_in_pipeline_split=false" in words
    assert "model.account_for_loss_in_pipeline_split=false" in words


def test_settings_without_an_option_are_config_overrides() -> None:
    asked = {"weightDecay": 0.05, "lrDecayStyle": "linear", "seed": 7}
    r = resolved("qwen3.5-vl-9b-sft", 8, training=asked, parallelism={"recomputeGranularity": "selective"})
    words = megatron_arguments(r, plan(r), "run")
    paths = ("optimizer.weight_decay", "scheduler.start_weight_decay", "scheduler.end_weight_decay")
    assert {f"{path}=0.05" for path in paths} <= {*words}
    assert {"scheduler.lr_decay_style=linear", "rng.seed=7"} <= {*words}
    assert "model.recompute_granularity=selective" in words


@pytest.mark.parametrize(
    ("recipe", "count", "beta2"),
    [
        ("moonlight-16b-a3b-sft", 8, 0.95),
        ("moonlight_16b_sft_8gpu_h100_bf16_tp1_config", 8, 0.95),
        ("moonlight_16b_sft_8gpu_h100_bf16_8k_config", 8, 0.98),
        ("moonlight-16b-a3b-lora", 2, 0.98),
        ("moonlight-16b-a3b-lora", 4, 0.95),
    ],
)
def test_the_second_moment_decays_as_in_the_function(recipe: str, count: int, beta2: float) -> None:
    assert resolved(recipe, count).training.adam_beta2 == beta2


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"training": {"fp8Format": "hybrid"}}, "spec.training.fp8Format"),
        ({"training": {"evalInterval": 5}}, "spec.training.evalInterval"),
        ({"parallelism": {"tpCommOverlap": True}}, "spec.parallelism.tpCommOverlap"),
    ],
)
def test_settings_that_the_command_cannot_pass_are_rejected(asked: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRecipeError) as refused:
        resolved("qwen3.5-vl-9b-sft", 8, **asked)
    assert [error.field for error in refused.value.errors] == [field]


def test_no_job_is_created() -> None:
    r = resolved("nemotron3-nano-omni-30b-a3b-sft", 8)
    with pytest.raises(InvalidRecipeError) as refused:
        manifests.build(PlannedRun("run", "default", r, plan(r)), "")
    (error,) = refused.value.errors
    assert error.field == "spec.recipe"
    assert "not started: on GPUs the trainer's image lacks kernels that it needs: mamba-ssm" in error.message
    assert "megatron args" in error.fix


def test_a_fsdp_functions_layout_is_planned_for_megatron_core() -> None:
    p = plan(resolved("llama3_70b_pretrain_64gpu_gb200_bf16_config", 64, "gb200", data={"mockData": True}))
    assert p.tensor_model_parallel_size * p.pipeline_model_parallel_size > 1
    assert any("llama3_70b_pretrain_64gpu_gb200_bf16_config is not used" in note for note in p.notes)


def test_the_note_of_a_recipe_without_its_kernels_agrees_with_its_refusal() -> None:
    r = resolved("nemotron-h-8b", 8)
    (note,) = [each for each in plan(r).notes if each.startswith("run by Megatron-Bridge")]
    assert "does not start it while imageHas of profile h100-sxm lacks mamba-ssm" in note
    assert NOT_STARTED not in note


@pytest.mark.parametrize(
    ("accelerator", "note"),
    [
        ("h100-sxm", "the published layout for 512 x h100-sxm is used ("),
        ("h200", "the layout published for 512 x h100-sxm is used on h200 too ("),
    ],
)
def test_a_layout_of_the_h100_is_used_on_the_h200_as_that(accelerator: str, note: str) -> None:
    notes = resolved("kimi-k2", 512, accelerator, data={"mockData": True}).notes
    assert any(each.startswith(note) for each in notes)


@pytest.mark.parametrize(("epochs", "times"), [(None, "once"), (3, "3 times")])
def test_a_note_counts_how_often_a_sample_is_read(epochs: int | None, times: str) -> None:
    data = {"volume": {"claimName": "c"}, "sources": [{"path": "/data/a.jsonl", "format": "chat"}]}
    weights = {"from": {"huggingFace": {"path": "/data/llama"}}}
    asked = data | ({"maxEpochs": epochs} if epochs else {})
    r = resolved("llama3-8b-sft", 4, data=asked, init=weights, training={"trainIters": 500})
    assert any(f"at most {times} each (data.maxEpochs)" in note for note in plan(r).notes)
