"""Sizes of the recipe's volumes against the checkpoints that they must hold."""

from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.validation import parse_spec
from megatron_operator.cli.default_platform import default_platform
from megatron_operator.planner import admit, plan

# A checkpoint of llama3-8b has 104.7 GiB.


def notes(resolve: Any, **checkpoint: Any) -> list[str]:
    planned = plan(resolve("llama3-8b", 8, training={"trainIters": 10000}, checkpoint=checkpoint))
    return [note for note in planned.notes if "checkpoint.volume" in note]


@pytest.mark.parametrize(
    ("checkpoint", "message"),
    [
        (
            {"volume": {"size": "200Gi"}, "keep": 1},
            "spec.checkpoint.volume.size: 200Gi has no room for two checkpoints of 104.7 GiB, the newest and "
            "the one being written; set at least 210Gi",
        ),
        (
            {"volume": {"size": "2Ti"}, "keep": 1, "local": {"sizeLimit": "150Gi", "saveInterval": 10}},
            "spec.checkpoint.local.sizeLimit: 150Gi has no room for two checkpoints of 104.7 GiB, the newest "
            "and the one being written; set at least 210Gi",
        ),
        (
            {"volume": {"size": "300Gi"}, "keep": 1, "keepBest": True, "saveInterval": 1000},
            "spec.checkpoint.volume.size: 300Gi has no room for three checkpoints of 104.7 GiB, the best, "
            "the newest and the one being written; set at least 315Gi",
        ),
    ],
)
def test_a_size_without_room_for_two_checkpoints_is_refused(
    resolve: Any, checkpoint: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRecipeError) as refused:
        plan(resolve("llama3-8b", 8, checkpoint=checkpoint))
    assert [str(error) for error in refused.value.errors] == [message]


def test_a_size_without_room_for_those_to_keep_has_a_note(resolve: Any) -> None:
    assert notes(resolve, volume={"size": "400Gi"}, keep=3) == [
        "checkpoint.volume.size 400Gi has room for 3 checkpoints of 104.7 GiB; keep 3 and the one being "
        "written need 419Gi: set that size, or keep 2"
    ]
    assert notes(resolve, volume={"size": "419Gi"}, keep=3) == []
    best = {"keep": 3, "keepBest": True, "saveInterval": 1000}
    assert notes(resolve, volume={"size": "419Gi"}, **best) == [
        "checkpoint.volume.size 419Gi has room for 4 checkpoints of 104.7 GiB; keep 3, the best and the one "
        "being written need 524Gi: set that size, or keep 2"
    ]
    assert notes(resolve, volume={"size": "524Gi"}, **best) == []


def test_a_size_without_room_for_all_of_the_run_has_a_note_where_none_is_deleted(resolve: Any) -> None:
    assert notes(resolve, volume={"size": "400Gi"}, saveInterval=1000) == [
        "checkpoint.volume.size 400Gi has room for 3 checkpoints of 104.7 GiB; without keep the run's 10 are "
        "all kept, which needs 1048Gi: set that size, or keep 2"
    ]
    assert notes(resolve, volume={"size": "400Gi"}, saveInterval=5000) == []


def test_where_the_platform_has_the_size_the_fix_is_what_the_recipe_can_set(resolve: Any) -> None:
    assert notes(resolve, saveInterval=500) == [
        "checkpoint.volume.size of the platform: 1Ti has room for 9 checkpoints of 104.7 GiB; without keep "
        "the run's 20 are all kept, which needs 2095Gi: set checkpoint.keep: 8"
    ]


def test_a_size_without_room_for_those_to_keep_is_a_warning() -> None:
    spec = {
        "recipe": "llama3-8b",
        "accelerator": {"type": "h100-sxm", "count": 8},
        "data": {"mockData": True},
        "checkpoint": {"volume": {"size": "400Gi"}, "keep": 3},
    }
    warnings = admit("run", parse_spec(spec), default_platform(), catalog.load()).warnings
    assert [each for each in warnings if "has room for 3 checkpoints" in each]


def test_the_size_of_the_platform_is_never_refused(resolve: Any) -> None:
    for checkpoint in ({}, {"volume": {"storageClassName": "fast"}}):
        planned = plan(resolve("llama3.1-405b", 1024, checkpoint=checkpoint))
        assert [note for note in planned.notes if "checkpoint.volume" in note] == [
            "checkpoint.volume.size of the platform: 1Ti has no room for two checkpoints of 5292.1 GiB, the "
            "newest and the one being written: set at least 10585Gi"
        ]


def test_an_existing_claim_is_not_checked(resolve: Any) -> None:
    assert notes(resolve, volume={"claimName": "small"}, keep=100) == []
