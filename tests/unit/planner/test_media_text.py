"""Recipes that fine-tune on images, sound and text: what they take, and the arguments of run and Job."""

import json
from typing import Any

import pytest
from megatron_contract.bridge_run import CHATS, IMAGE_TEXT, SOUND_TEXT
from megatron_operator import manifests

from tests.unit.planner.test_bridge_run import overrides, planned, refusals

RECIPE = "qwen3-omni-30b-a3b-sft"
TRAINING: dict[str, Any] = {"trainIters": 1000, "lrWarmupIters": 10, "evalIters": 1}
DATA: dict[str, Any] = {"volume": {"claimName": "corpus"}, "sources": [{"path": "/data/media/*.tar"}]}


def test_a_run_reads_what_its_job_prepares_of_the_tar_files() -> None:
    found = overrides(RECIPE, data=DATA, training=TRAINING)
    job = manifests.build(planned(RECIPE, data=DATA, training=TRAINING), "").prepare_job
    assert job is not None
    (container,) = job["spec"]["template"]["spec"]["containers"]
    words = container["args"]

    assert found[IMAGE_TEXT] is True
    assert not {CHATS, SOUND_TEXT} & found.keys()
    assert str(found["dataset.dataset_root"]).endswith("_media")
    assert words[words.index("--output") + 1] == found["dataset.dataset_root"]
    assert json.loads(words[words.index("--media") + 1]) == [{"path": "/data/media/*.tar"}]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"data": DATA | {"sources": [{"path": "/data/chats.jsonl"}]}},
            "spec.data.sources[0].format: chat is not read by a model that takes images and sound",
        ),
        ({"data": DATA, "freeze": ["language"]}, "trains no model of images and text"),
        (
            {
                "data": DATA,
                "parallelism": {"pipelineModelParallelSize": 2, "numVirtualStagesPerPipelineRank": 2},
            },
            "spec.parallelism.numVirtualStagesPerPipelineRank: 2 is set, and Megatron-Bridge builds",
        ),
    ],
)
def test_what_is_not_taken_is_refused_with_the_field(settings: dict[str, Any], problem: str) -> None:
    found = refusals(RECIPE, training=TRAINING, **settings)
    assert [each for each in found if problem in each], found
