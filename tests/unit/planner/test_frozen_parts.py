"""Vision-language models of which parts are frozen: what is refused, rendered and estimated."""

from dataclasses import replace
from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.catalog import bridge_support
from megatron_operator.lifecycle.checkpoint_compatibility import checkpoint_contract, contract_violations
from megatron_operator.planner.estimate import hardware, memory
from megatron_operator.planner.estimate.calibration import FITTED
from megatron_operator.planner.estimate.checkpoint import checkpoint_bytes
from megatron_operator.planner.estimate.compute import ComputeModel
from megatron_operator.planner.estimate.workload import Workload

from tests.unit.planner.test_bridge_run import overrides, planned, refusals
from tests.unit.planner.test_image_text import FILES, images

SFT, ALIGNS = "qwen3-vl-8b-sft", "qwen3-vl-8b"
ALIGNED = [entry.name for entry in catalog.load() if entry.aligns_projector]
FOUR: dict[str, Any] = {"type": "h100-sxm", "count": 4}
LONG: dict[str, Any] = {"trainIters": 1000, "lrWarmupIters": 10, "evalIters": 1}
EPOCHS = {"maxEpochs": 100}


def frozen(recipe: str, **spec: Any) -> dict[str, Any]:
    found = overrides(recipe, accelerator=FOUR, data=images(), training=LONG, **spec)
    return {path: value for path, value in found.items() if path.startswith("model.freeze_")}


def test_eight_recipes_train_the_projector_of_a_model_between_its_frozen_towers() -> None:
    assert len(ALIGNED) == 8
    assert frozen(ALIGNS) == {
        "model.freeze_language_model": True,
        "model.freeze_vision_model": True,
        "model.freeze_vision_projection": False,
    }


@pytest.mark.parametrize("recipe", [SFT, ALIGNS])
def test_a_recipe_freezes_the_parts_that_it_names_and_no_others(recipe: str) -> None:
    assert frozen(recipe, freeze=["projector"]) == {
        "model.freeze_language_model": False,
        "model.freeze_vision_model": False,
        "model.freeze_vision_projection": True,
    }


def test_sft_freezes_what_its_function_does() -> None:
    assert set(frozen(SFT).values()) == {False}
    found = overrides("gemma4-vl-26b-sft", data=images(), training=LONG)
    assert found["model.freeze_vision_model"] is True
    assert found["model.freeze_language_model"] is found["model.freeze_vision_projection"] is False


@pytest.mark.parametrize("recipe", [name for name in ALIGNED if name.startswith("qwen3-")])
def test_the_projector_is_not_trained_between_random_weights(recipe: str) -> None:
    count = catalog.load().get(recipe).layouts[0].count
    accelerator = {"type": "h100-sxm", "count": count}
    for init in (None, {"modelFolder": "/data/model"}):
        (refused,) = refusals(
            recipe, accelerator=accelerator, data=images(**EPOCHS), training=LONG, init=init
        )
        assert refused.startswith(
            f"spec.init.from: is not set: {recipe} would train a projector between random weights; set "
            "init.from.huggingFace.path"
        )


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (
            images("/data/chats.jsonl"),
            "spec.data.sources[0].format: chat is not read by a vision-language model: webdataset is",
        ),
        (
            FILES | {"blend": [{"path": "text_document"}]},
            "spec.data.blend: is not passed to Megatron-Bridge; set data.sources with format: webdataset",
        ),
    ],
)
def test_the_projector_is_not_trained_on_text(data: dict[str, Any], problem: str) -> None:
    found = refusals(ALIGNS, accelerator=FOUR, data=data, training=LONG)
    assert any(problem in each for each in found)


@pytest.mark.parametrize(
    ("recipe", "problem"),
    [
        ("qwen3-vl-8b-lora", "spec.freeze: has no effect: qwen3-vl-8b-lora trains adapters, and freezes all"),
        ("llama3.2-1b-sft", "spec.freeze: has no effect: llama3.2-1b-sft trains no model of images and text"),
        ("llama3-8b", "spec.freeze: has no effect: llama3-8b trains no model of images and text"),
    ],
)
def test_parts_are_frozen_only_where_a_model_has_them_and_trains_them(recipe: str, problem: str) -> None:
    init = {"init": None} if recipe == "llama3-8b" else {}
    found = refusals(recipe, data=FILES | {"mockData": True}, freeze=["vision"], **init)
    assert any(problem in each for each in found)


def test_parts_are_not_frozen_of_a_model_that_was_not_trained_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge_support, "FROZEN_IN_PARTS", frozenset())
    (refused,) = refusals(SFT, data=images(), training=LONG, freeze=["vision"])
    assert refused.startswith("spec.freeze: was not tried with the model of qwen3-vl-8b-sft: ")


def test_adapters_are_refused_where_the_projector_is_trained() -> None:
    found = refusals(ALIGNS, accelerator=FOUR, data=images(), training=LONG, peft={"dim": 8})
    assert any("spec.peft: qwen3-vl-8b trains the projector (mode pretrain)" in each for each in found)


@pytest.mark.parametrize("recipe", ["qwen3-vl-235b-a22b", "qwen3-vl-30b-a3b"])
def test_samples_are_not_split_over_ranks_although_a_function_does(recipe: str) -> None:
    layout = catalog.load().get(recipe).layouts[0]
    accelerator = {"type": "h100-sxm", "count": layout.count}
    plan = planned(recipe, accelerator=accelerator, data=images(**EPOCHS), training=LONG).plan
    split = (layout.parallelism.context_parallel_size or 1) > 1

    assert plan.context_parallel_size == 1
    assert any("samples are not split over its CP 2" in note for note in plan.notes) == split


def workload(recipe: str, **spec: Any) -> Workload:
    run = planned(recipe, accelerator=FOUR, data=images(), training=LONG, **spec)
    return Workload.of(run.resolved, run.plan)


def test_frozen_parts_have_weights_and_neither_gradients_nor_optimizer_states() -> None:
    w = workload(SFT, parallelism={"tensorModelParallelSize": 1, "pipelineModelParallelSize": 1})
    (tower,) = w.shape.towers
    held = sum(memory.held_parameters(w, 0))
    projector = 160_496_896
    expected = {
        ("language", "vision"): projector,
        ("language", "projector"): tower.parameters - projector,
        ("language",): tower.parameters,
        ("vision",): held - tower.parameters + projector,
        ("vision", "projector"): held - tower.parameters,
        ("projector",): held - projector,
    }
    for parts, trained in expected.items():
        other = replace(w, frozen=frozenset(parts))
        assert sum(memory.trained_parameters(other, 0)) == trained
        states = memory.states(other, 0)
        assert states.weights == memory.states(w, 0).weights
        assert states.gradients == w.numerics.gradient * trained


def test_a_projector_of_unknown_size_is_counted_with_its_tower() -> None:
    w = workload("gemma3-vl-4b-sft", freeze=["language", "vision"])
    (tower,) = w.shape.towers
    assert tower.projector is None
    assert sum(memory.trained_parameters(w, 0)) == tower.parameters


def test_a_step_takes_less_time_where_weights_have_no_gradients() -> None:
    w = workload(SFT)
    accelerator = hardware.table()["h100-sxm"]
    whole, language, vision = (
        ComputeModel(replace(w, frozen=frozenset(parts)), accelerator, FITTED).stage(0).total
        for parts in ((), ("language",), ("vision",))
    )
    assert language < 0.8 * whole
    assert 0.8 * whole < vision < whole


def test_a_checkpoint_has_the_optimizer_states_of_what_is_trained() -> None:
    aligned, tuned = (
        planned(recipe, accelerator=FOUR, data=images(), training=LONG) for recipe in (ALIGNS, SFT)
    )
    total = aligned.plan.parameters_padded or 0
    assert checkpoint_bytes(aligned.resolved, aligned.plan) == 2 * total + 12 * 160_496_896
    assert checkpoint_bytes(tuned.resolved, tuned.plan) == 14 * (tuned.plan.parameters_padded or 0)


def contract(recipe: str, **spec: Any) -> dict[str, str]:
    run = planned(recipe, accelerator=FOUR, data=images(), training=LONG, **spec)
    return checkpoint_contract(run.resolved, run.plan, run.arguments)


def test_an_edit_of_what_is_frozen_is_refused_once_a_checkpoint_has_the_states_of_the_rest() -> None:
    before, after = contract(SFT), contract(SFT, freeze=["vision"])
    (violation,) = contract_violations(before, after, 100)
    assert str(violation).startswith(
        "spec.freeze: is vision, and the run's checkpoint of iteration 100 was made with none"
    )


def test_naming_the_parts_that_a_function_freezes_itself_changes_no_checkpoint() -> None:
    assert contract(ALIGNS) == contract(ALIGNS, freeze=["vision", "language"])


def test_a_note_of_frozen_parts_names_why_a_number_is_a_limit() -> None:
    notes = planned(
        "qwen2.5-vl-7b-sft", accelerator=FOUR, data=images(), training=LONG, freeze=["vision"]
    ).plan.notes
    (note,) = [each for each in notes if each.startswith("frozen: vision")]
    assert "at most" in note
    assert "(with the encoder's: how many of them are the projector's is not known)" in note
