"""Runs with a checkpoint whose imported model is edited: the field that is named, and the fix that works."""

from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.cli.default_platform import default_platform
from megatron_operator.lifecycle.desired import Config, checkpoint_conflicts, desired_state
from megatron_operator.lifecycle.status_builder import StatusBuilder

PLATFORM = default_platform()
CONFIG = Config(
    PLATFORM.model_copy(update={"hub": PLATFORM.hub.model_copy(update={"enabled": True})}), catalog.load()
)
BASE = {"path": "/data/base"}
NAMED = {"name": "google/gemma-3-1b-pt"}
OWN_ARCHITECTURE = "gemma3-1b"


def run(recipe: str, model: dict[str, str] | None, folder: str | None = None) -> StatusBuilder:
    """The recipe with an imported model."""
    init: dict[str, Any] = {"from": {"huggingFace": model}} if model else {}
    spec = {
        "recipe": recipe,
        "accelerator": {"type": "h100-sxm", "count": 8},
        "init": init | ({"modelFolder": folder} if folder else {}),
        "data": {
            "volume": {"claimName": "corpus"},
            "blend": [{"path": "text"}],
            "tokenizer": {"tokenizerType": "HuggingFaceTokenizer", "tokenizerModel": "/data/tokenizer"},
        },
    }
    metadata = {"name": "run", "namespace": "research", "uid": "1"}
    return StatusBuilder.of({"metadata": metadata, "spec": spec}, 0.0)


def conflicts(recipe: str, before: dict[str, str] | None, after: StatusBuilder) -> list[str]:
    """What is refused of the recipe `after`, whose checkpoint was made with the model `before`."""
    contract = desired_state(run(recipe, before), CONFIG).contract
    made = StatusBuilder.of(
        dict(after.body) | {"status": {"checkpoint": {"iteration": 100, "contract": contract}}}, 0.0
    )
    return [str(error) for error in checkpoint_conflicts(made, desired_state(made, CONFIG))]


MADE = "and the run's checkpoint of iteration 100 was made with"
FIX = "set it back, or start a new recipe under another name"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (BASE, None, f"path: is not set, {MADE} /data/base; {FIX}"),
        (BASE, {"path": "/data/other"}, f"path: is /data/other, {MADE} /data/base; {FIX}"),
        (NAMED, None, f"name: is not set, {MADE} /data/hub/google/gemma-3-1b-pt/main; {FIX}"),
        (None, BASE, f"path: is /data/base, {MADE} none; {FIX}"),
    ],
)
def test_an_edited_import_is_refused_by_its_own_field(
    before: dict[str, str] | None, after: dict[str, str] | None, message: str
) -> None:
    found = conflicts(OWN_ARCHITECTURE, before, run(OWN_ARCHITECTURE, after))
    assert found == [f"spec.init.from.huggingFace.{message}"]
    assert conflicts(OWN_ARCHITECTURE, before, run(OWN_ARCHITECTURE, before)) == [], "set back"


def test_a_folder_that_the_recipe_names_is_refused_by_init_model_folder() -> None:
    after = run("gemma2-2b", None, "/data/other")
    assert conflicts("gemma2-2b", BASE, after) == [
        f"spec.init.modelFolder: is /data/other, {MADE} /data/base; {FIX}"
    ]
    assert conflicts("gemma2-2b", BASE, run("gemma2-2b", None, "/data/base")) == []


ADAPTERS = "llama3.1-8b-lora"


def edited(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What is refused of a run of adapters whose `init.from` is edited, but for its tokenizer."""
    runs = [run(ADAPTERS, None) for _ in range(2)]
    for each, source in zip(runs, (before, after), strict=True):
        each.body["spec"] |= {
            "init": {"from": source, "modelFolder": "/data/model"},
            "data": {"volume": {"claimName": "corpus"}, "datasetRoot": "answers"},
            "checkpoint": {"volume": {"claimName": "runs"}},
        }
    contract = desired_state(runs[0], CONFIG).contract
    made = StatusBuilder.of(
        dict(runs[1].body) | {"status": {"checkpoint": {"iteration": 100, "contract": contract}}}, 0.0
    )
    return [str(error) for error in checkpoint_conflicts(made, desired_state(made, CONFIG))]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            {"huggingFace": BASE},
            {"huggingFace": {"path": "/data/other"}},
            f"huggingFace.path: is /data/other, {MADE} /data/base; {FIX}",
        ),
        (
            {"huggingFace": BASE},
            {"huggingFace": NAMED},
            f"huggingFace.name: is /data/hub/google/gemma-3-1b-pt/main, {MADE} /data/base; {FIX}",
        ),
        (
            {"megatron": {"path": "/data/base"}},
            {"huggingFace": BASE},
            f"huggingFace.path: is /data/base-megatron, {MADE} /data/base; {FIX}",
        ),
        ({"recipe": "first"}, {"recipe": "second"}, f"recipe: is second, {MADE} first; {FIX}"),
        (
            {"megatron": {"path": "/data/base-megatron"}},
            {"megatron": {"path": "/data/other-megatron"}},
            f"megatron.path: is /data/other-megatron, {MADE} /data/base-megatron; {FIX}",
        ),
    ],
)
def test_edited_weights_of_adapters_are_refused_by_the_field_that_names_them(
    before: dict[str, Any], after: dict[str, Any], message: str
) -> None:
    assert edited(before, after) == [f"spec.init.from.{message}"]
    assert edited(before, before) == [], "set back"
