"""Checkpoints without optimizer states or random states: arguments of both engines, sizes and warnings."""

from typing import Any

import pytest
from megatron_contract.bridge_run import BridgeRun
from megatron_operator import planner
from megatron_operator.manifests.grace import grace_seconds
from megatron_operator.planner import plan
from megatron_operator.planner.estimate.checkpoint import checkpoint_bytes

WITHOUT: dict[str, Any] = {"noSaveOptim": True, "noSaveRng": True}
ELASTIC: dict[str, Any] = {"elastic": {"minCount": 4}}
BRIDGE: dict[str, Any] = {
    "init": {"modelFolder": "/data/model", "from": {"megatron": {"path": "/data/weights"}}},
    "data": {"volume": {"claimName": "corpus"}, "datasetRoot": "chats"},
}
FSDP: dict[str, Any] = {"parallelism": {"useMegatronFsdp": True}}


def arguments(resolved: Any) -> list[str]:
    return planner.megatron_arguments(resolved, plan(resolved), "run")


def test_megatrons_loop_gets_both_flags_and_no_form_of_states_that_it_does_not_save(resolve: Any) -> None:
    words = arguments(resolve("llama3-8b", 8, checkpoint=WITHOUT, recovery=ELASTIC))
    assert {"--no-save-optim", "--no-save-rng"} <= set(words)
    assert "--dist-ckpt-optim-fully-reshardable" not in words
    assert not {"--no-save-optim", "--no-save-rng"} & set(arguments(resolve("llama3-8b", 8)))


def test_bridge_gets_both_settings(resolve: Any) -> None:
    words = arguments(resolve("llama3-8b-sft", 8, checkpoint=WITHOUT, recovery=ELASTIC, **BRIDGE))
    found = BridgeRun.from_arguments(words).overrides
    assert found["checkpoint.save_optim"] is found["checkpoint.save_rng"] is False
    assert "checkpoint.dist_ckpt_optim_fully_reshardable" not in found
    own = BridgeRun.from_arguments(arguments(resolve("llama3-8b-sft", 8, **BRIDGE))).overrides
    assert not {"checkpoint.save_optim", "checkpoint.save_rng"} & own.keys()


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        ({}, 2),
        ({"bf16": False, "fp16": True}, 2),
        ({"usePrecisionAwareOptimizer": True}, 2),
        ({"bf16": False}, 4),
    ],
)
def test_a_checkpoint_without_optimizer_states_has_the_bytes_of_the_weights(
    resolve: Any, training: dict[str, Any], expected: int
) -> None:
    resolved = resolve("llama3-8b", 64, training=training, checkpoint={"noSaveOptim": True})
    planned = plan(resolved)
    assert planned.parameters_padded is not None
    assert checkpoint_bytes(resolved, planned) == expected * planned.parameters_padded


def test_checkpoints_of_lora_without_optimizer_states_hold_the_weights_of_adapters(resolve: Any) -> None:
    sizes = []
    for checkpoint in ({}, {"noSaveOptim": True}):
        resolved = resolve("llama3-8b-lora", 1, checkpoint=checkpoint, **BRIDGE)
        sizes.append(checkpoint_bytes(resolved, plan(resolved)))
    whole, without = sizes
    assert whole is not None
    assert without == whole / 7


def test_smaller_checkpoints_need_a_shorter_grace_period(resolve: Any) -> None:
    seconds = []
    for without in (False, True):
        checkpoint = {"asyncSave": False, "noSaveOptim": without}
        resolved = resolve("llama3-70b", 32, training={"bf16": False}, checkpoint=checkpoint)
        seconds.append(grace_seconds(resolved, plan(resolved)))
    whole, without = seconds
    assert without < whole


@pytest.mark.parametrize(
    ("recipe", "more"),
    [("llama3-8b", {}), ("llama3-8b-sft", BRIDGE)],
    ids=["own loop", "bridge"],
)
def test_the_plan_warns_that_a_resume_is_not_exact(resolve: Any, recipe: str, more: dict[str, Any]) -> None:
    notes = plan(resolve(recipe, 8, checkpoint=WITHOUT, **more)).notes
    assert (
        "checkpoint.noSaveOptim: a resume starts with new moments of the optimizer and with weights rounded"
        " to 16 bits, so it does not repeat the losses of an undisturbed run"
    ) in notes
    assert (
        "checkpoint.noSaveRng: a resume draws the random numbers of the run's start again, so with dropout"
        " it does not repeat the losses of an undisturbed run"
    ) in notes
    assert not any("noSave" in note for note in plan(resolve(recipe, 8, **more)).notes)


def test_in_fp32_weights_are_not_rounded(resolve: Any) -> None:
    notes = plan(resolve("llama3-8b", 8, training={"bf16": False}, checkpoint={"noSaveOptim": True})).notes
    assert (
        "checkpoint.noSaveOptim: a resume starts with new moments of the optimizer, so it does not repeat the"
        " losses of an undisturbed run"
    ) in notes


def test_random_states_may_be_left_out_with_megatron_fsdp(resolve: Any) -> None:
    words = arguments(resolve("llama3-8b", 8, checkpoint={"noSaveRng": True}, **FSDP))
    assert {"--use-megatron-fsdp", "--no-save-rng"} <= set(words)
