"""`data.packing`: what it sets, and where nothing keeps packed samples apart."""

from typing import Any

import pytest
from megatron_contract.bridge_run import PACKED_FOLDER

from tests.unit.planner.test_bridge_run import FILES, overrides, planned, refusals

PACKED: dict[str, Any] = FILES | {"packing": True}


def test_packed_samples_are_written_beside_the_checkpoints_and_are_a_micro_batch_each() -> None:
    found = overrides("llama3.1-8b-sft", data=PACKED)

    assert found[PACKED_FOLDER] == "/checkpoints/run/packed"
    assert found["train.micro_batch_size"] == 1
    assert PACKED_FOLDER not in overrides("llama3.1-8b-sft", data=FILES | {"packing": False})


@pytest.mark.parametrize(
    ("recipe", "spec", "problem"),
    [
        (
            "llama3.1-8b-lora",
            {"training": {"microBatchSize": 2}},
            "spec.training.microBatchSize: 2 packed sequences of a micro batch are not read",
        ),
        ("deepseek-v4-flash-sft", {}, "spec.data.packing: true, but attention with csaCompressRatios"),
        ("qwen2.5-vl-3b-sft", {}, "spec.data.packing: is not passed to Megatron-Bridge"),
        ("gemma2-2b", {"init": {"modelFolder": "/data/m"}}, "spec.data.packing: has no effect"),
        ("llama3-8b", {"init": None}, "spec.data.packing: has no effect on Megatron Core's loop"),
    ],
)
def test_packing_is_refused_with_the_reason_where_it_cannot_be_done(
    recipe: str, spec: dict[str, Any], problem: str
) -> None:
    assert any(problem in each for each in refusals(recipe, data=PACKED, **spec))


def test_packing_is_refused_on_cpus_with_the_reason() -> None:
    platform = {"bridgeImage": "bridge", "accelerators": {"cpu": {"platform": "cpu"}}}
    (found,) = refusals("llama3.1-8b-sft", 8, platform, data=PACKED)
    assert found.startswith("spec.data.packing: true needs Transformer Engine's attention")


def test_packed_sequences_may_be_longer_than_the_positions_of_the_model() -> None:
    notes = planned("llama3-8b-sft", data=PACKED, training={"seqLength": 16384}).plan.notes
    assert any(note.startswith("training.seqLength 16384 is above the 8192 positions") for note in notes)


@pytest.mark.parametrize("recipe", ["llama3-8b-sft", "llama3-8b-lora"])
def test_sequences_may_be_as_long_as_the_positions_of_the_users_own_model(recipe: str) -> None:
    notes = planned(recipe, data=FILES, training={"seqLength": 16384}).plan.notes
    above = f"training.seqLength 16384 is above the 8192 positions of {recipe}'s model in the catalog"
    assert f"{above}: that of the run must have as many (max_position_embeddings in its config.json)" in notes


def test_sequences_are_not_longer_than_the_positions_of_a_model_of_the_catalog() -> None:
    spec: dict[str, Any] = {"init": None, "data": {"mockData": True}, "training": {"seqLength": 8192}}
    assert refusals("olmoe-7b", **spec) == [
        "spec.training.seqLength: 8192 is above the 4096 positions of olmoe-7b's model; set at most 4096, or"
        " choose a recipe of a model with more positions"
    ]
