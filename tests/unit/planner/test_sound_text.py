"""Recipes that fine-tune on sound and text: what they take, and the arguments of run and Job."""

import json
from typing import Any

import pytest
from megatron_contract.bridge_run import CHATS, IMAGE_TEXT, MOCK_DATA, SOUND_TEXT
from megatron_operator import manifests

from tests.unit.planner.test_bridge_run import overrides, planned, refusals

RECIPE = "qwen2-audio-7b-lora"
TRAINING: dict[str, Any] = {"trainIters": 1000, "lrWarmupIters": 10, "evalIters": 1}
DATA: dict[str, Any] = {"volume": {"claimName": "corpus"}, "sources": [{"path": "/data/sound/*.tar"}]}


def test_a_run_reads_what_its_job_prepares_of_the_tar_files() -> None:
    found = overrides(RECIPE, data=DATA, training=TRAINING)
    job = manifests.build(planned(RECIPE, data=DATA, training=TRAINING), "").prepare_job
    assert job is not None
    (container,) = job["spec"]["template"]["spec"]["containers"]
    words = container["args"]

    assert found[SOUND_TEXT] is True
    assert not {CHATS, IMAGE_TEXT} & found.keys()
    assert str(found["dataset.dataset_root"]).endswith("_sound")
    assert words[words.index("--output") + 1] == found["dataset.dataset_root"]
    assert json.loads(words[words.index("--sound") + 1]) == [{"path": "/data/sound/*.tar"}]
    assert container["resources"]["requests"]["memory"] == "2Gi"


def test_random_sounds_need_no_data() -> None:
    found = overrides(RECIPE, data={"volume": {"claimName": "corpus"}, "mockData": True}, training=TRAINING)
    assert found[SOUND_TEXT] is found[MOCK_DATA] is True
    assert "dataset.dataset_root" not in found


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"data": DATA | {"sources": [{"path": "/data/chats.jsonl"}]}},
            "spec.data.sources[0].format: chat is not read by a model that takes sound: webdataset is; write "
            "tar files with a .json and the sound of each sample",
        ),
        (
            {"data": DATA | {"sources": [{"path": "s3://corpus/a.tar"}]}},
            "in object storage, and the run itself reads the sound",
        ),
        (
            {"data": DATA, "parallelism": {"tensorModelParallelSize": 2, "sequenceParallel": True}},
            "spec.parallelism.sequenceParallel: true, which the model of qwen2-audio-7b-lora in "
            "Megatron-Bridge does not have; set false, or leave it out",
        ),
        ({"data": DATA, "freeze": ["language"]}, "trains no model of images and text"),
    ],
)
def test_what_is_not_taken_is_refused_with_the_field(settings: dict[str, Any], problem: str) -> None:
    found = refusals(RECIPE, training=TRAINING, **settings)
    assert [each for each in found if problem in each], found


def test_a_model_whose_predictions_are_not_scattered_keeps_sequences_whole() -> None:
    recipe, accelerator = "exaone4.5-vl-33b-sft", {"type": "h100-sxm", "count": 16}
    data = {"volume": {"claimName": "corpus"}, "sources": [{"path": "/data/images/*.tar"}]}
    run = planned(recipe, data=data, training=TRAINING, accelerator=accelerator)
    assert (run.plan.tensor_model_parallel_size, run.plan.sequence_parallel) == (4, False)
    assert not [note for note in run.plan.notes if "sequenceParallel" in note]


def test_tensor_parallelism_is_planned_without_that_of_sequences() -> None:
    asked = {"tensorModelParallelSize": 2}
    accelerator = {"type": "h100-sxm", "count": 8}
    found = overrides(
        "qwen2-audio-7b-sft", data=DATA, training=TRAINING, parallelism=asked, accelerator=accelerator
    )
    other = overrides(
        "qwen2.5-vl-7b-sft", data=DATA, training=TRAINING, parallelism=asked, accelerator=accelerator
    )

    assert found["model.tensor_model_parallel_size"] == other["model.tensor_model_parallel_size"] == 2
    assert found["model.sequence_parallel"] is False
    assert other["model.sequence_parallel"] is True
