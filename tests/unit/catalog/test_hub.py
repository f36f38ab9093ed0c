"""Models by their name on a hub: where the platform opens one, and the folder that they are downloaded to."""

from collections.abc import Callable
from typing import Any

import pytest
from megatron_operator.api.platform import Hub, PlatformConfig
from megatron_operator.catalog import ResolvedRecipe

Resolve = Callable[..., ResolvedRecipe]
Refusal = Callable[..., dict[str, str]]
NAME = "meta-llama/Llama-3.1-8B"
FIELD = "spec.init.from.huggingFace.name"


def init(**more: str) -> dict[str, Any]:
    return {"from": {"huggingFace": {"name": NAME} | more}}


@pytest.fixture
def opened(platform: PlatformConfig) -> PlatformConfig:
    return platform.model_copy(update={"hub": Hub(enabled=True)})


def folder_of(resolved: ResolvedRecipe) -> str:
    source = resolved.init.source
    assert source is not None
    assert source.hugging_face is not None
    assert source.checkpoint == f"{source.hugging_face.folder}-megatron"
    return source.hugging_face.folder


def test_a_name_is_refused_with_the_field_that_opens_it(refusal: Refusal) -> None:
    line = refusal(recipe="small-1", init=init())[FIELD]
    assert "platform.hub.enabled is false; have it set to true, or download the model" in line


@pytest.mark.parametrize(("more", "revision"), [({}, "main"), ({"revision": "refs/pr/1"}, "refs/pr/1")])
def test_the_folder_is_that_of_name_and_revision_on_the_data_volume(
    resolve: Resolve, opened: PlatformConfig, more: dict[str, str], revision: str
) -> None:
    data = {"volume": {"claimName": "models"}, "blend": [{"path": "web"}]}
    resolved = resolve(platform=opened, recipe="small-1", init=init(**more), data=data)
    assert folder_of(resolved) == f"/data/hub/{NAME}/{revision}"
    assert resolved.data.tokenizer is not None
    assert resolved.data.tokenizer.tokenizer_model == f"/data/hub/{NAME}/{revision}"


def test_without_a_data_volume_the_folder_is_beside_the_checkpoints(
    resolve: Resolve, opened: PlatformConfig
) -> None:
    assert (
        folder_of(resolve(platform=opened, recipe="small-1", init=init())) == f"/checkpoints/hub/{NAME}/main"
    )


def test_a_folder_of_a_volume_stays_as_it_is(resolve: Resolve, opened: PlatformConfig) -> None:
    named = {"from": {"huggingFace": {"path": "/checkpoints/model"}}}
    assert folder_of(resolve(platform=opened, recipe="small-1", init=named)) == "/checkpoints/model"
