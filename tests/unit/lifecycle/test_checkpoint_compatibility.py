"""Which changes of a recipe its checkpoints are compatible with."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from megatron_operator import catalog, planner
from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.lifecycle.checkpoint_compatibility import (
    OPTIMIZER,
    checkpoint_contract,
    continued_contract,
    contract_after_save,
    contract_violations,
)

PLATFORM = Path(__file__).parents[2] / "golden" / "platform.yaml"


def contract_with(**changes: Any) -> dict[str, str]:
    spec = {"recipe": "llama3-8b", "accelerator": {"count": 64}, "data": {"mockData": True}} | changes
    platform = PlatformConfig.model_validate(yaml.safe_load(PLATFORM.read_text()))
    resolved = catalog.resolve(MegatronRecipeSpec.model_validate(spec), platform, catalog.load())
    plan = planner.plan(resolved)
    return checkpoint_contract(resolved, plan, planner.megatron_arguments(resolved, plan, "run"))


LAYOUT: dict[str, Any] = {
    "tensorModelParallelSize": 2,
    "pipelineModelParallelSize": 1,
    "contextParallelSize": 1,
}


WIDER = LAYOUT | {"tensorModelParallelSize": 4}
SENTENCE_PIECE = {"tokenizerType": "SentencePieceTokenizer", "tokenizerModel": "/data/t"}


@pytest.mark.parametrize(
    "changes",
    [
        {"training": {"trainIters": 100000}},
        {"training": {"lr": 0.0001}},
        {"model": {"hiddenDropout": 0.1}},
        {"accelerator": {"count": 32}},
        {"checkpoint": {"keep": 2}},
        {"recovery": {"maxRestarts": 2}},
    ],
    ids=str,
)
def test_a_checkpoint_is_compatible_with(changes: dict[str, Any]) -> None:
    before = contract_with(parallelism=LAYOUT)
    assert contract_violations(before, contract_with(**({"parallelism": LAYOUT} | changes)), 100) == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": {"numLayers": 40}}, "spec.model.numLayers"),
        ({"model": {"hiddenSize": 8192}}, "spec.model.hiddenSize"),
        ({"model": {"qkLayernorm": True}}, "spec.model.qkLayernorm"),
        ({"training": {"bf16": False, "fp16": True}}, "spec.training.fp16"),
        ({"training": {"fp8Format": "hybrid", "fp8Recipe": "delayed"}}, "spec.training.fp8Format"),
        (
            {"data": {"mockData": True, "tokenizer": SENTENCE_PIECE}},
            "spec.data.tokenizer.tokenizerType",
        ),
        ({"parallelism": WIDER}, "spec.parallelism.tensorModelParallelSize"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_checkpoint_is_incompatible_with(changes: dict[str, Any], field: str) -> None:
    before = contract_with(parallelism=LAYOUT)
    found = contract_violations(before, contract_with(**({"parallelism": LAYOUT} | changes)), 100)
    assert field in {error.field for error in found}


def test_a_checkpoint_of_experts_is_incompatible_with_another_order_of_gates() -> None:
    experts = {"recipe": "mixtral-8x7b"}
    after = contract_with(**experts, megatronArgs={"moe-mlp-glu-interleave-size": 32})
    (error,) = contract_violations(contract_with(**experts), after, 100)
    assert error.field == "spec.megatronArgs.moe-mlp-glu-interleave-size"


def test_a_checkpoint_of_another_optimizer_is_incompatible() -> None:
    before = contract_with(parallelism=LAYOUT)
    (error,) = contract_violations(before | {OPTIMIZER: "muon"}, before, 100)
    assert error.field == "spec.training.optimizer"


def test_an_elastic_runs_checkpoint_is_compatible_with_another_layout() -> None:
    elastic = {"recovery": {"elastic": {"minCount": 32}}}
    before = contract_with(parallelism=LAYOUT, **elastic)
    after = contract_with(parallelism=WIDER, **elastic)
    assert contract_violations(before, after, 100) == []


def tensor_parallel_error(before: dict[str, str], after: dict[str, str]) -> FieldError:
    errors = contract_violations(before, after, 1200)
    return next(error for error in errors if error.field == "spec.parallelism.tensorModelParallelSize")


def test_a_run_that_became_elastic_changes_its_layout_after_a_checkpoint() -> None:
    elastic = {"recovery": {"elastic": {"minCount": 32}}}
    wider = contract_with(parallelism=WIDER, **elastic)
    continued = continued_contract(
        contract_with(parallelism=LAYOUT), contract_with(parallelism=LAYOUT, **elastic)
    )
    error = tensor_parallel_error(continued, wider)
    assert "set 2 until the run has saved another checkpoint, which any layout can load" in error.fix
    again = continued_contract(continued, contract_with(parallelism=LAYOUT, **elastic))
    assert contract_violations(again, wider, 100), "another job of the same run has saved nothing yet"
    assert contract_violations(contract_after_save(continued), wider, 120) == []


def test_a_checkpoint_without_optimizer_states_is_compatible_with_another_layout() -> None:
    without = {"checkpoint": {"noSaveOptim": True}}
    before = contract_with(parallelism=LAYOUT, **without)
    wider = contract_with(parallelism=WIDER, **without)
    assert contract_violations(before, wider, 100) == []

    continued = continued_contract(contract_with(parallelism=LAYOUT), before)
    assert tensor_parallel_error(continued, wider), "the checkpoint of before has states"
    assert contract_violations(contract_after_save(continued), wider, 120) == []


@pytest.mark.parametrize("flag", ["noSaveOptim", "noSaveRng"])
def test_what_checkpoints_have_can_be_edited(flag: str) -> None:
    whole, without = (
        contract_with(parallelism=LAYOUT, checkpoint={flag: value} if value else {})
        for value in (False, True)
    )
    assert contract_violations(whole, without, 100) == []
    assert contract_violations(without, whole, 100) == []


def test_a_run_that_is_no_longer_elastic_keeps_its_layout() -> None:
    elastic = {"recovery": {"elastic": {"minCount": 32}}}
    before, after = contract_with(parallelism=LAYOUT, **elastic), contract_with(parallelism=LAYOUT)
    assert continued_contract(before, after) == after
    assert contract_after_save(after) == after


def test_the_refusal_of_another_layout_names_the_ways_to_it() -> None:
    before, after = contract_with(parallelism=LAYOUT), contract_with(parallelism=WIDER)
    assert tensor_parallel_error(before, after).fix == (
        "set 2; or set recovery.elastic first, and change the layout once the run has saved again; "
        "or when it has succeeded, start a new recipe in the new layout with init.from.recipe, "
        "which takes the weights without the optimizer state"
    )


def test_the_error_names_the_checkpoint_and_the_fix() -> None:
    (error,) = contract_violations({"model.numLayers": "32"}, {"model.numLayers": "40"}, 1200)
    assert str(error) == (
        "spec.model.numLayers: is 40, and the run's checkpoint of iteration 1200 was made with 32; "
        "set it back, or start a new recipe under another name"
    )


FINE_TUNED: dict[str, Any] = {
    "recipe": "llama3.1-8b-lora",
    "accelerator": {"count": 2},
    "parallelism": {"tensorModelParallelSize": 1},
    "init": {"modelFolder": "/data/model", "from": {"megatron": {"path": "/data/weights"}}},
    "data": {"volume": {"claimName": "corpus"}, "mockData": True},
}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"peft": {"dim": 4}}, "spec.peft.dim"),
        ({"peft": {"type": "dora"}}, "spec.peft.type"),
        ({"peft": {"targetModules": ["linear_qkv"]}}, "spec.peft.targetModules"),
        (
            {"init": {"modelFolder": "/data/model", "from": {"megatron": {"path": "/data/others"}}}},
            "spec.init.from.megatron.path",
        ),
    ],
)
def test_adapters_and_the_weights_below_them_are_fixed_by_checkpoints(
    changes: dict[str, Any], field: str
) -> None:
    before, after = contract_with(**FINE_TUNED), contract_with(**FINE_TUNED | changes)
    assert [error.field for error in contract_violations(before, after, 100)] == [field]


def test_the_dropout_of_adapters_may_change() -> None:
    before, after = contract_with(**FINE_TUNED), contract_with(**FINE_TUNED, peft={"dropout": 0.1})
    assert contract_violations(before, after, 100) == []


@pytest.mark.parametrize(
    "adapters", [{}, {"type": "dora"}, {"type": "dora", "targetModules": ["linear_qkv"]}], ids=str
)
def test_the_layout_of_adapters_changes_with_elastic_alone(adapters: dict[str, Any]) -> None:
    """Not of DoRA in a gated `linear_fc1`, whose magnitudes Bridge gives to other rows at another TP."""
    run = FINE_TUNED | {"peft": adapters}
    wider = {"parallelism": {"tensorModelParallelSize": 2}}
    errors = contract_violations(contract_with(**run), contract_with(**run | wider), 100)
    assert "spec.parallelism.tensorModelParallelSize" in [error.field for error in errors]

    elastic = {"recovery": {"elastic": {"minCount": 1}}}
    if adapters == {"type": "dora"}:
        with pytest.raises(InvalidRecipeError, match="does not load DoRA of linear_fc1 at another TP"):
            contract_with(**run, **elastic)
    else:
        before, after = contract_with(**run, **elastic), contract_with(**run | wider, **elastic)
        assert contract_violations(before, after, 100) == []


def dora_run(*targets: str, **spec: Any) -> dict[str, str]:
    sizes = {"tensorModelParallelSize": 1, "pipelineModelParallelSize": 1} | spec.pop("parallelism", {})
    peft = {"type": "dora", "targetModules": list(targets)}
    return contract_with(**FINE_TUNED | {"peft": peft, "parallelism": sizes} | spec)


def test_magnitudes_in_the_order_of_ranks_fix_tp_alone_without_optimizer_states() -> None:
    without = {"checkpoint": {"noSaveOptim": True}}
    wider, deeper = {"tensorModelParallelSize": 2}, {"pipelineModelParallelSize": 2}
    gates = ("linear_qkv", "linear_fc1")
    [error] = contract_violations(
        dora_run(*gates, **without), dora_run(*gates, **without, parallelism=wider), 100
    )
    assert str(error) == (
        "spec.parallelism.tensorModelParallelSize: is 2, and the magnitudes of DoRA on linear_fc1 in the "
        "run's checkpoint of iteration 100 are in the order of TP 1; set 1, or start a new recipe under "
        "another name, without linear_fc1 in peft.targetModules"
    )
    for targets, changed in ((gates, deeper), (["linear_qkv"], wider), (["linear_qkv"], deeper)):
        before, after = dora_run(*targets, **without), dora_run(*targets, **without, parallelism=changed)
        assert contract_violations(before, after, 100) == []


def test_no_refusal_of_a_layout_of_dora_of_gates_advises_elastic_which_it_is_refused_with() -> None:
    for changed in ("tensorModelParallelSize", "pipelineModelParallelSize"):
        after = dora_run("linear_fc1", parallelism={changed: 2})
        errors = contract_violations(dora_run("linear_fc1"), after, 100)
        assert f"spec.parallelism.{changed}" in [error.field for error in errors]
        assert not [error for error in errors if "elastic" in error.fix]


def test_a_run_of_nvfp4_whose_contract_is_older_than_the_field_continues() -> None:
    nvfp4 = {"training.fp4Format": "e2m1", "training.optimizer": "adam"}
    before = {name: value for name, value in nvfp4.items() if name != "training.fp4Format"}
    assert not contract_violations(before, nvfp4, 100)
    [error] = contract_violations(nvfp4, before, 100)
    assert error.field == "spec.training.fp4Format"


def test_a_run_of_0_2_0_continues_whose_contract_has_the_size_of_no_tokenizer() -> None:
    named = {"data.tokenizer.tokenizerModel": "/data/llama"}
    size = "data.prepare.tokenizerVocabSize"
    assert not contract_violations(named | {size: "32000"}, named, 100)
    for before, after in ((named | {size: "4096"}, named), (named, named | {size: "32000"})):
        [error] = contract_violations(before, after, 100)
        assert error.field == f"spec.{size}"


def batches(**training: Any) -> dict[str, str]:
    """The contract of a run of llama3-8b, whose samples have 8,192 tokens."""
    return contract_with(parallelism=LAYOUT, training=training | {"lrWarmupFraction": 0.01})


TOKENS_OF_A_STEP = 64 * 8192


@pytest.mark.parametrize("length", [{"trainIters": 1000}, {"trainSamples": 64_000}], ids=str)
def test_a_checkpoint_of_another_batch_is_incompatible(length: dict[str, int]) -> None:
    before, after = (batches(globalBatchSize=batch, **length) for batch in (64, 128))
    [error] = contract_violations(before, after, 500)
    assert str(error) == (
        "spec.training.globalBatchSize: is 128, and the run's checkpoint of iteration 500 was made with 64: "
        "Megatron would count the run's iterations as ones of the other batch, for its length and its "
        "learning rate; set training.globalBatchSize: 64; or start a new recipe under another name with "
        "init.from; or, in Megatron's own loop, give the batches of later samples by stepBatchSizeSchedule, "
        "with trainSamples"
    )


def test_a_run_of_megatron_bridge_keeps_its_batch() -> None:
    length = {"globalBatchSize": 8, "trainSamples": 8000}
    before = contract_with(**FINE_TUNED, training=length)
    after = contract_with(**FINE_TUNED, training=length | {"globalBatchSize": 16})
    [error] = contract_violations(before, after, 500)
    assert error.field == "spec.training.globalBatchSize"


def test_a_batch_that_another_count_brings_is_set_back_by_the_fix() -> None:
    published, more = {"recipe": "qwen3-30b-a3b"}, {"accelerator": {"count": 128}}
    before, after = contract_with(**published), contract_with(**published, **more)
    errors = {error.field: error for error in contract_violations(before, after, 500)}
    error = errors["spec.training.globalBatchSize"]
    assert error.message.startswith("is 32, and the run's checkpoint of iteration 500 was made with 4096")
    assert error.fix.startswith("set training.globalBatchSize: 4096; or ")
    again = contract_with(**published, **more, training={"globalBatchSize": 4096})
    assert error.field not in [each.field for each in contract_violations(before, again, 500)]


def test_a_run_in_iterations_goes_on_in_samples_of_the_same_batch() -> None:
    before = batches(globalBatchSize=64, trainIters=1000)
    assert contract_violations(before, batches(globalBatchSize=64, trainSamples=64_000), 500) == []


@pytest.mark.parametrize(
    ("step", "accepted"), [(499, False), (500, True), (800, True)], ids=["trained", "now", "later"]
)
def test_a_batch_may_change_from_a_step_on_that_is_not_trained_yet(step: int, accepted: bool) -> None:
    before = batches(globalBatchSize=64, trainIters=1000)
    later = f"0:64 {step * TOKENS_OF_A_STEP}:128"
    errors = contract_violations(before, batches(stepBatchSizeSchedule=later, trainSamples=64_000), 500)
    fields = [] if accepted else ["spec.training.stepBatchSizeSchedule"]
    assert [error.field for error in errors] == fields


def test_iterations_after_the_newest_checkpoint_count_as_trained() -> None:
    """The job saves once more before it ends for the edit."""
    before = batches(globalBatchSize=64, trainIters=1000)
    later = f"0:64 {600 * TOKENS_OF_A_STEP}:128"
    after = batches(stepBatchSizeSchedule=later, trainSamples=64_000)
    assert contract_violations(before, after, 500, 600) == []
    assert contract_violations(before, after, 500, 650)


def test_a_ramp_up_that_has_begun_keeps_the_steps_that_are_over() -> None:
    ramp, length = f"0:64 {500 * TOKENS_OF_A_STEP}:128", {"trainSamples": 640_000}
    before, constant = batches(stepBatchSizeSchedule=ramp, **length), batches(globalBatchSize=64, **length)
    longer = batches(stepBatchSizeSchedule=f"{ramp} {2000 * TOKENS_OF_A_STEP}:256", **length)
    assert contract_violations(before, longer, 600) == []
    assert contract_violations(before, constant, 400) == []
    [error] = contract_violations(before, constant, 600)
    assert "was made with 0:64 32000:128 (batches by their first sample)" in error.message
    assert error.fix.startswith("keep the batches of the samples that are trained; ")


def test_a_length_in_tokens_keeps_the_tokens_of_a_sample() -> None:
    before, after = (batches(trainTokens="100B", seqLength=length) for length in (4096, 8192))
    [error] = contract_violations(before, after, 100_000)
    assert str(error) == (
        "spec.training.seqLength: is 8192, and the run's checkpoint of iteration 100000 was made with 4096: "
        "trainTokens would be another number of iterations, of which those so far would count as ones of the "
        "new length, for the end of the run and its learning rate; set training.seqLength: 4096; or give the "
        "length of the whole run as trainIters, under a batch ramp-up as trainSamples; or start a new recipe "
        "under another name with init.from"
    )


def test_a_length_in_tokens_of_megatron_bridge_keeps_the_tokens_of_a_sample() -> None:
    before, after = (
        contract_with(**FINE_TUNED, training={"trainTokens": "10B", "seqLength": length})
        for length in (4096, 8192)
    )
    [error] = contract_violations(before, after, 100)
    assert error.field == "spec.training.seqLength"


@pytest.mark.parametrize("length", [{"trainIters": 150_000}, {"trainSamples": 19_200_000}], ids=str)
def test_samples_may_become_longer_where_tokens_do_not_set_the_length(length: dict[str, int]) -> None:
    short, long = ({"seqLength": tokens, "globalBatchSize": 128} for tokens in (4096, 8192))
    after = batches(**long, **length)
    assert contract_violations(batches(**short, trainTokens="100B"), after, 100_000) == []
    assert contract_violations(batches(**short, **length), after, 100_000) == []


def test_a_run_whose_contract_is_older_than_the_tokens_of_a_sample_continues() -> None:
    before, after = (batches(trainTokens="100B", seqLength=length) for length in (4096, 8192))
    del before["training.seqLength"]
    assert contract_violations(before, after, 100_000) == []


def test_a_run_whose_contract_is_older_than_the_batch_continues() -> None:
    after = batches(globalBatchSize=64, trainIters=1000)
    before = {name: value for name, value in after.items() if name != "training.globalBatchSize"}
    assert contract_violations(before, after, 500) == []


@pytest.mark.parametrize("text", ["many", "0:", "0:64 x:128", "-5"])
def test_a_batch_that_cannot_be_read_is_another_one(text: str) -> None:
    after = batches(globalBatchSize=64, trainIters=1000)
    assert contract_violations(after | {"training.globalBatchSize": text}, after, 500)
