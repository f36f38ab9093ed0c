"""Recipes that fine-tune on images and text: what they take, and the arguments of run and Job."""

import json
from typing import Any

import pytest
from megatron_contract.bridge_run import CHATS, IMAGE_TEXT, MOCK_DATA
from megatron_operator import manifests
from megatron_operator.catalog import bridge_support
from megatron_trainer.weights import fixed_settings

from tests.unit.planner.test_bridge_run import overrides, planned, refusals

RECIPE = "qwen2.5-vl-3b-lora"
TRAINING: dict[str, Any] = {"trainIters": 1000, "lrWarmupIters": 10, "evalIters": 1}


FILES: dict[str, Any] = {"volume": {"claimName": "corpus"}}


def images(*paths: str, **data: Any) -> dict[str, Any]:
    sources = [{"path": path} for path in paths or ("/data/images/*.tar",)]
    return FILES | {"sources": sources} | data


def test_a_run_reads_what_its_job_prepares_of_the_tar_files() -> None:
    run = planned(RECIPE, data=images(), training=TRAINING)
    found = overrides(RECIPE, data=images(), training=TRAINING)
    job = manifests.build(run, "").prepare_job
    assert job is not None
    (container,) = job["spec"]["template"]["spec"]["containers"]
    words = container["args"]

    assert found[IMAGE_TEXT] is True
    assert CHATS not in found
    assert found["dataset.do_validation"] is True
    assert words[words.index("--output") + 1] == found["dataset.dataset_root"]
    assert json.loads(words[words.index("--images") + 1]) == [{"path": "/data/images/*.tar"}]
    assert words[words.index("--tokenizer-dir") + 1] == "/data/model"
    assert container["resources"]["requests"]["memory"] == "2Gi"


def test_the_folder_that_a_run_reads_is_another_for_other_images() -> None:
    one, other = (
        overrides(RECIPE, data=images(path), training=TRAINING)["dataset.dataset_root"]
        for path in ("/data/a.tar", "/data/b.tar")
    )
    assert str(one).endswith("_images")
    assert one != other


def test_random_images_need_no_data() -> None:
    found = overrides(RECIPE, data=FILES | {"mockData": True}, training=TRAINING)
    assert found[IMAGE_TEXT] is found[MOCK_DATA] is True
    assert "dataset.dataset_root" not in found


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (
            images("/data/chats.jsonl"),
            "spec.data.sources[0].format: chat is not read by a vision-language model: webdataset is",
        ),
        (images("s3://corpus/a.tar"), "spec.data.sources[0].path: 's3://corpus/a.tar' is in object storage"),
        (
            images(sources=[{"path": "/data/a.tar", "weight": 0.5}]),
            "spec.data.sources[0].weight: has no effect: an epoch has every sample of every source once",
        ),
        (
            FILES | {"datasetRoot": "chats"},
            "spec.data.datasetRoot: is not passed to Megatron-Bridge; set data.sources with format: ",
        ),
        (images(prepare={"appendEod": False}), "spec.data.prepare.appendEod: false has no effect on samples"),
        (FILES, "spec.data: no training data is configured; set data.sources"),
    ],
)
def test_what_is_not_read_is_refused_with_the_field(data: dict[str, Any], problem: str) -> None:
    assert any(problem in each for each in refusals(RECIPE, data=data, training=TRAINING))


@pytest.mark.parametrize("recipe", ["llama3.2-1b-lora", "llama3-8b"])
def test_images_are_refused_where_text_alone_is_read(recipe: str) -> None:
    data = images("/data/a.tar") | {"sources": [{"path": "/data/a.tar", "format": "webdataset"}]}
    init = {} if recipe == "llama3-8b" else {"init": {"from": {"huggingFace": {"path": "/data/model"}}}}
    found = refusals(recipe, data=data, **{"init": None, **init})

    assert any(
        "spec.data.sources[0].format: webdataset has images or sound, which only recipes of models that take"
        in each
        for each in found
    )


def test_sequences_in_which_minimax_m3_would_attend_to_selected_blocks_are_refused() -> None:
    recipe, longer = "minimax-m3-sft", TRAINING | {"seqLength": 3072}
    (found,) = refusals(recipe, 256, data=images(), training=longer)
    assert found.startswith("spec.training.seqLength: 3072 is above 2048: further on the model attends ")
    assert found.endswith("; set it to at most 2048")

    longest = planned(recipe, 256, data=images(), training=TRAINING)
    assert manifests.build(longest, "").prepare_job is not None


def test_the_trainer_converts_what_attends_to_all_of_the_longest_sequence() -> None:
    assert {*fixed_settings.SELECTED.items()} == {*bridge_support.LONGEST_SEQUENCES.items()}


def test_no_virtual_stages_are_planned_beside_a_vision_tower() -> None:
    data = images()
    found = planned("qwen2.5-vl-72b-sft", accelerator={"type": "h100-sxm", "count": 64}, data=data).plan
    assert found.pipeline_model_parallel_size > 1
    assert found.virtual_pipeline_model_parallel_size is None


def test_the_first_stage_has_the_layers_that_get_features_of_the_vision_tower() -> None:
    problem = "PP 18 leaves 2 layers on the first stage, and features of the vision tower go into the first 3"
    asked = {"pipelineModelParallelSize": 18}
    found = refusals(
        "qwen3-vl-8b-sft", accelerator={"type": "h100-sxm", "count": 144}, data=images(), parallelism=asked
    )
    assert any(problem in each for each in found)


def test_tensor_parallelism_divides_the_heads_of_a_vision_tower_that_it_splits() -> None:
    found = refusals(
        "qwen3-vl-8b-sft",
        platform={"accelerators": {"gb200": {}}, "bridgeImage": "bridge"},
        accelerator={"type": "gb200", "count": 32},
        data=images(),
        parallelism={"tensorModelParallelSize": 32},
    )
    assert any("32 does not divide the 16 attention heads of the vision tower" in each for each in found)


@pytest.mark.parametrize("name", ["qwen3-vl-8b", "qwen3-vl-30b-a3b", "qwen3-vl-235b-a22b"])
@pytest.mark.parametrize("mode", ["sft", "lora"])
def test_recipes_of_qwen3_vl_are_planned_with_their_vision_tower(name: str, mode: str) -> None:
    found = planned(f"{name}-{mode}", accelerator={"type": "h100-sxm", "count": 256}, data=images())
    assert any("tokens are images" in note for note in found.plan.notes)
    assert overrides(f"{name}-{mode}", accelerator={"type": "h100-sxm", "count": 256}, data=images())[
        IMAGE_TEXT
    ]
