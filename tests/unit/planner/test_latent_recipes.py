"""Recipes of diffusion models: the run on latents that the operator renders, and what they do not take."""

from typing import Any

import pytest
from megatron_contract.bridge_run import MOCK_DATA, BridgeRun, Value
from megatron_operator import catalog, manifests
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.cli.default_platform import default_platform
from megatron_operator.planner import PlannedRun, admit

LATENTS: dict[str, Any] = {"volume": {"claimName": "corpus"}, "datasetRoot": "latents", "numWorkers": 2}
TRIAL: dict[str, Any] = {"volume": {"claimName": "corpus"}, "mockData": True}
FROM: dict[str, Any] = {"from": {"megatron": {"path": "/data/weights"}}}
COUNTS = {"flux1-12b": 2, "wan2.1-1.3b": 8, "wan2.1-14b": 8}


def planned(recipe: str, **spec: Any) -> PlannedRun:
    count = COUNTS[recipe.removesuffix("-sft")]
    asked = {"recipe": recipe, "accelerator": {"type": "h100-sxm", "count": count}, "data": LATENTS} | spec
    read = MegatronRecipeSpec.model_validate(asked)
    return admit("run", read, default_platform(), catalog.load())


def overrides(recipe: str, **spec: Any) -> dict[str, Value]:
    run = planned(recipe, **spec)
    assert manifests.build(run, "").job["kind"] == "PyTorchJob"
    return dict(BridgeRun.from_arguments(run.arguments).overrides)


def refusals(recipe: str, **spec: Any) -> dict[str, str]:
    with pytest.raises(InvalidRecipeError) as refused:
        manifests.build(planned(recipe, **spec), "")
    return {error.field: error.message for error in refused.value.errors}


@pytest.mark.parametrize("recipe", COUNTS)
def test_latents_are_read_and_no_tokenizer(recipe: str) -> None:
    for name, init in ((recipe, {}), (f"{recipe}-sft", FROM)):
        found = overrides(name, init=init)
        assert found["dataset.dataset_root"] == "/data/latents"
        assert found["dataset.num_workers"] == 2
        assert found["dataset.do_validation"] is True
        assert not [path for path in found if path.startswith(("tokenizer.", "hub."))]


def test_random_latents_are_asked_for_by_mock_data() -> None:
    found = overrides("flux1-12b", data=TRIAL)
    assert found[MOCK_DATA] is True
    assert "dataset.dataset_root" not in found


def test_samples_of_wan_are_split_over_the_ranks_of_its_function_and_sequences_are_not() -> None:
    found = overrides("wan2.1-14b")
    sizes = ("context_parallel_size", "tensor_model_parallel_size", "sequence_parallel")
    assert [found[f"model.{size}"] for size in sizes] == [4, 2, False]


def test_layers_are_computed_again_as_the_function_has_it() -> None:
    assert overrides("wan2.1-14b")["model.recompute_granularity"] == "full"
    assert overrides("flux1-12b")["model.recompute_granularity"] is None


def test_a_recipe_without_data_or_weights_is_refused() -> None:
    missing = refusals("wan2.1-1.3b-sft", data={"volume": {"claimName": "corpus"}})
    assert missing.keys() == {"spec.init.from", "spec.data"}


def test_what_diffusion_models_do_not_take_is_refused() -> None:
    folder: dict[str, Any] = {"huggingFace": {"path": "/data/model"}}
    refused = refusals(
        "flux1-12b-sft",
        init={"from": folder},
        export={"huggingFace": {"path": "/data/exported"}},
        data=LATENTS | {"split": "98,2,0", "tokenizer": {"tokenizerModel": "/data/model"}},
    )
    fields = ("init.from.huggingFace", "export", "data.split", "data.tokenizer")
    assert refused.keys() == {f"spec.{field}" for field in fields}


@pytest.mark.parametrize("init", [FROM, {"modelFolder": "/data/model"}])
def test_a_recipe_that_pretrains_starts_from_nothing(init: dict[str, Any]) -> None:
    (field,) = refusals("wan2.1-1.3b", init=init)
    assert field.startswith("spec.init.")
