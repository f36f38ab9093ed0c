"""`data.packing`: what it sets, and where nothing keeps packed samples apart."""

from typing import Any

import pytest
from megatron_contract.bridge_run import MAX_EPOCHS, PACKED_FOLDER, BridgeRun

from tests.unit.planner.test_bridge_run import FILES, SOURCES, overrides, planned, refusals

ON_CPUS: dict[str, Any] = {"bridgeImage": "bridge", "accelerators": {"cpu": {"platform": "cpu"}}}
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


@pytest.mark.parametrize("recipe", ["llama3-8b", "deepseek-v2-lite"])
def test_a_recipe_that_packs_nothing_has_no_other_error_of_packing(recipe: str) -> None:
    listed = [{"path": f"/data/{name}.txt", "format": "text", "weight": 2} for name in ("a", "b")]
    data = SOURCES | {"sources": listed, "packing": True}
    found = refusals(recipe, data=data, init=None, training={"microBatchSize": 2})
    assert [each.partition(":")[0] for each in found if "pack" in each] == ["spec.data.packing"]


@pytest.mark.parametrize(
    ("recipe", "layers"),
    [
        ("nemotron-nano2-9b-sft", "state-space layers"),
        ("qwen3-next-80b-a3b-sft", "gated delta nets"),
        ("glm5.2-sft", "indexers of sparse attention"),
    ],
)
def test_packing_is_refused_on_cpus_where_layers_do_not_keep_samples_apart(recipe: str, layers: str) -> None:
    found = refusals(recipe, 8, ON_CPUS, data=PACKED)
    problem = f"true, but on CPUs the {layers} of {recipe} do not keep packed samples apart"
    assert f"spec.data.packing: {problem}; leave it out" in found


def test_a_run_on_cpus_packs_samples() -> None:
    run = planned("llama3.2-1b-sft", 2, ON_CPUS, data=PACKED)
    assert BridgeRun.from_arguments(run.arguments).overrides[PACKED_FOLDER] == "/checkpoints/run/packed"


@pytest.mark.parametrize(
    ("data", "epochs"),
    [
        (PACKED, None),
        (PACKED | {"maxEpochs": 3}, 3),
        (SOURCES | {"packing": True}, 1),
        (SOURCES | {"packing": True, "maxEpochs": 2}, 2),
        (SOURCES, None),
    ],
)
def test_a_run_is_given_how_often_it_may_read_a_packed_sequence(
    data: dict[str, Any], epochs: int | None
) -> None:
    assert overrides("llama3.1-8b-sft", data=data).get(MAX_EPOCHS) == epochs


def test_prepared_samples_are_those_of_a_run_without_packing_and_are_not_called_padded() -> None:
    roots = [
        overrides("llama3.1-8b-sft", data=SOURCES | {"packing": packing})["dataset.dataset_root"]
        for packing in (True, False)
    ]
    assert roots[0] == roots[1]
    notes = planned("llama3.1-8b-sft", data=SOURCES | {"packing": True}).plan.notes
    assert any(note.startswith("iterations take packed sequences, ") for note in notes)
    assert not any("are padded to" in note for note in notes)


def test_weights_of_sources_are_refused_with_packing() -> None:
    listed = [{"path": f"/data/{name}.jsonl", "format": "chat", "weight": 0.5} for name in ("a", "b")]
    found = refusals("llama3.1-8b-sft", data=SOURCES | {"sources": listed, "packing": True})
    assert found == [
        f"spec.data.sources[{number}].weight: 0.5 with data.packing: an epoch has every packed sequence once;"
        " leave it out, or set packing: false"
        for number in range(2)
    ]


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
