"""Names and values of other releases and programs are answered with today's."""

import re
from typing import Any, get_args

import pytest
from megatron_operator.api import other_names
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.fine_tuning import TargetModule
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.api.validation import parse_spec
from megatron_operator.planner.checks.passthrough import megatron_flags


def errors(section: str, name: str, value: Any) -> list[str]:
    spec = {"recipe": "llama3-8b", "accelerator": {"count": 8}, "data": {"mockData": True}}
    spec[section] = {**spec.get(section, {}), name: value} if section else value  # type: ignore[dict-item]
    with pytest.raises(InvalidRecipeError) as refused:
        parse_spec(spec)
    return [str(error).removeprefix(f"spec.{section}.{name}: ") for error in refused.value.errors]


@pytest.mark.parametrize(
    ("section", "name", "fix"),
    [
        (
            "parallelism",
            "numLayersPerVirtualPipelineStage",
            "set spec.parallelism.numVirtualStagesPerPipelineRank: layers of a stage divided by the layers of"
            " a virtual stage",
        ),
        (
            "training",
            "cpuOffloadOptimizer",
            "set spec.training.usePrecisionAwareOptimizer: true and megatronArgs.optimizer-cpu-offload: true",
        ),
        ("parallelism", "dpCommOverlapBucketSize", "set spec.parallelism.ddpBucketSize"),
        (
            "training",
            "enableStragglerDetection",
            "leave it out: status.stragglers names slow ranks; megatronArgs.log-straggler logs more",
        ),
        (
            "training",
            "accumulate_allreduce_grads_in_fp32",
            "did you mean `accumulateAllreduceGradsInFp32`?",
        ),
        ("training", "gradReduceInFp32", "set spec.training.accumulateAllreduceGradsInFp32"),
        (
            "checkpoint",
            "no_save_optim",
            "did you mean `noSaveOptim`?",
        ),
        (
            "checkpoint",
            "ckptFormat",
            "leave it out: checkpoints are torch_dist (fsdp_dtensor with parallelism.useMegatronFsdp),"
            " formats that load in another layout",
        ),
        ("training", "learningRate", "set spec.training.lr"),
        ("training", "fp8Hybrid", "set spec.training.fp8Format: hybrid"),
        ("training", "nvfp4", "set spec.training.fp4Format: e2m1"),
        ("training", "fp4_recipe", "set spec.training.fp4Format: e2m1, whose scaling recipe is nvfp4"),
        ("training", "fp4_param", "set spec.training.fp4ParamGather"),
        ("training", "rampup_batch_size", "set spec.training.stepBatchSizeSchedule"),
        ("model", "num_key_value_heads", "set spec.model.numQueryGroups"),
        ("training", "tensorModelParallelSize", "set spec.parallelism.tensorModelParallelSize"),
        ("training", "seq_length", "did you mean `seqLength`?"),
        ("training", "globalbatchsize", "did you mean `globalBatchSize`?"),
        *(
            (
                section,
                "num_train_epochs",
                "set spec.training.trainIters: epochs x samples / globalBatchSize (data.maxEpochs is only a"
                " limit)",
            )
            for section in ("training", "data")
        ),
        ("checkpoint", "save_total_limit", "set spec.checkpoint.keep"),
        ("training", "save_total_limit", "set spec.checkpoint.keep"),
        ("peft", "lora_r", "set spec.peft.dim"),
        ("peft", "rank", "set spec.peft.dim"),
        ("training", "rank", "set spec.peft.dim"),
        ("data", "tokenizr", "did you mean `tokenizer`?"),
        ("recovery", "hangTimeot", "did you mean `hangTimeout`?"),
        ("data", "validDataPath", "set spec.data.blend: an entry with validation: true"),
        ("accelerator", "numNodes", "set spec.accelerator.count: the accelerators of all nodes"),
        (
            "parallelism",
            "dataParallelSize",
            "leave it out: it follows from accelerator.count and the other sizes",
        ),
        (
            "training",
            "gradientAccumulationSteps",
            "leave it out: it follows from globalBatchSize, microBatchSize and the data-parallel size",
        ),
        (
            "model",
            "activation",
            "set spec.model.swiglu: true, squaredRelu or quickGeglu, or leave them out for GELU",
        ),
        ("training", "colour", "leave it out; other Megatron flags go below spec.megatronArgs"),
        ("scheduling", "colour", "leave it out"),
        (
            "scheduling",
            "tolerations",
            "leave it out: the platform sets tolerations, in the accelerator's profile",
        ),
        (
            "scheduling",
            "affinity",
            "leave it out: the platform sets affinity, by nodeLabels and topology of the accelerator's"
            " profile",
        ),
        (
            "checkpoint",
            "volumeMounts",
            "leave it out: the platform sets volumes, in podTemplate of the accelerator's profile",
        ),
        ("checkpoint", "interval", "did you mean `saveInterval`?"),
        ("training", "finetune", "set spec.init.from.megatron.path"),
    ],
)
def test_an_unknown_field_is_answered_with_todays_name(section: str, name: str, fix: str) -> None:
    assert errors(section, name, 1) == [f"unknown field; {fix}"]


@pytest.mark.parametrize(
    ("name", "fix"),
    [("rank", "did you mean `ranks`?"), ("r", "set spec.peft.dim"), ("warmupSteps", "set spec.training.")],
)
def test_a_field_of_the_own_section_comes_before_other_names(name: str, fix: str) -> None:
    """`rank` is LoRA's name for its dimension, and a `profile` has `ranks`."""
    with pytest.raises(InvalidRecipeError) as refused:
        parse_spec({"accelerator": {"count": 8}, "profile": {"start": 1, "end": 2, name: 1}})
    [error] = [error for error in refused.value.errors if error.field == f"spec.profile.{name}"]
    assert fix in str(error)


@pytest.mark.parametrize(
    ("section", "name", "value", "text"),
    [
        ("model", "numQueryGroups", 0, "0 is below 1; leave it out: then each attention head has keys"),
        ("data", "blend", "0.7 web 0.3 code", "is not a list; write a list, for example [{path: web"),
        (
            "training",
            "stepBatchSizeSchedule",
            [16, 16, 1000],
            "is not a string; write tokens:batch pairs in one string, for example 0:384",
        ),
        ("training", "fp8Format", "fp8", "unsupported value 'fp8'; set hybrid or e4m3"),
        ("training", "trainTokens", 5e12, "is not a string; write a number in quotes, with K, M, B or T"),
    ],
)
def test_a_value_of_another_release_is_answered_with_how_to_write_it(
    section: str, name: str, value: Any, text: str
) -> None:
    assert [text in error for error in errors(section, name, value)] == [True]


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("v_proj", "set linear_qkv"),
        ("q_proj", "or linear_q_proj where the model has latent attention"),
        ("gate_proj", "set linear_fc1"),
        ("kv_a_proj_with_mqa", "set linear_kv_down_proj"),
        ("all-linear", "leave the list out"),
        ("my_proj", "set one of 'linear_qkv'"),
    ],
)
def test_a_layer_of_hugging_faces_models_is_answered_with_megatrons(name: str, fix: str) -> None:
    [error] = errors("peft", "targetModules", [name])
    assert f"unsupported value '{name}'" in error
    assert fix in error


@pytest.mark.parametrize("fix", other_names._LAYERS)
def test_every_answer_about_layers_names_layers_that_can_be_set(fix: str) -> None:
    assert set(re.findall(r"linear_\w+", fix)) <= set(get_args(TargetModule))


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("saveOptim", "noSaveOptim: false to save the optimizer states (default), true to leave them out"),
        (
            "saveOnlyModel",
            "noSaveOptim: false to save the optimizer states (default), true to leave them out",
        ),
        ("saveRng", "noSaveRng: false to save the random states (default), true to leave them out"),
    ],
)
def test_a_name_of_the_opposite_is_answered_with_both_values(name: str, fix: str, value: bool) -> None:
    assert errors("checkpoint", name, value) == [f"unknown field; set spec.checkpoint.{fix}"]


def fields_of(section: str) -> set[str]:
    annotation = MegatronRecipeSpec.model_fields[section].annotation
    models = (annotation, *getattr(annotation, "__args__", ()))
    return {str(info.alias) for each in models for info in getattr(each, "model_fields", {}).values()}


def test_no_other_name_is_the_name_of_a_field() -> None:
    names = {
        other_names.plain(leaf) for section in MegatronRecipeSpec.model_fields for leaf in fields_of(section)
    }
    assert len(names) > 100
    assert not names & other_names._FIXES.keys()


@pytest.mark.parametrize("today", other_names._TODAY)
def test_every_answer_names_a_field(today: str) -> None:
    section, name = today.split(":")[0].split(".")[:2]
    assert name in (megatron_flags() if section == "megatronArgs" else fields_of(section))
