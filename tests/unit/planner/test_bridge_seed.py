"""The seed of the order in which a run of engine bridge reads its samples."""

from typing import Any

import pytest
from megatron_contract.bridge_run import CORPUS_SEED, SAMPLE_SEED, BridgeRun, Value
from megatron_operator.planner import PlannedRun
from megatron_operator.planner.dataset_args import bridge_index_arguments

from tests.unit.planner import bridge_pretraining_runs as pretraining
from tests.unit.planner import test_bridge_run as fine_tuning
from tests.unit.planner import test_latent_recipes as diffusion

IMAGES = {"volume": {"claimName": "corpus"}, "sources": [{"path": "/data/images/*.tar"}]}


def seeds(run: PlannedRun) -> dict[str, Value]:
    found = BridgeRun.from_arguments(run.arguments).overrides
    return {path: value for path, value in found.items() if path in (SAMPLE_SEED, CORPUS_SEED, "rng.seed")}


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("packing", [False, True])
def test_the_seed_of_the_recipe_is_that_of_the_samples_to_fine_tune_on(seed: int, packing: bool) -> None:
    data = fine_tuning.FILES | {"packing": packing}
    run = fine_tuning.planned("llama3.1-8b-lora", data=data, training={"seed": seed})
    assert seeds(run) == {SAMPLE_SEED: seed, "rng.seed": seed}


@pytest.mark.parametrize("seed", [0, 7])
def test_the_seed_of_the_recipe_is_that_of_the_corpus_and_its_index(seed: int) -> None:
    run = pretraining.planned(training={"seed": seed})
    assert seeds(run) == {CORPUS_SEED: seed, "rng.seed": seed}
    index = BridgeRun.from_arguments(bridge_index_arguments(BridgeRun.from_arguments(run.arguments)))
    assert index.overrides[CORPUS_SEED] == seed


@pytest.mark.parametrize("recipe", ["llama3.1-8b-lora", "deepseek-v2-lite"])
def test_random_tokens_have_the_seed_of_the_recipe(recipe: str) -> None:
    data = {"volume": {"claimName": "corpus"}, "mockData": True}
    run = fine_tuning.planned(recipe, data=data, training={"seed": 7})
    assert seeds(run) == {CORPUS_SEED: 7, "rng.seed": 7}


def test_images_and_latents_are_read_in_the_order_of_the_seed_of_the_run() -> None:
    training = {"seed": 7}
    assert seeds(fine_tuning.planned("qwen2.5-vl-3b-sft", data=IMAGES, training=training)) == {"rng.seed": 7}
    assert seeds(diffusion.planned("wan2.1-1.3b", training=training)) == {"rng.seed": 7}


def test_without_a_seed_the_order_is_that_of_the_function() -> None:
    data: dict[str, Any] = fine_tuning.FILES
    assert seeds(fine_tuning.planned("llama3.1-8b-lora", data=data)) == {}
    assert seeds(pretraining.planned()) == {}
    packed = fine_tuning.planned("llama3.1-8b-lora", data=data | {"packing": True})
    assert seeds(packed) == {SAMPLE_SEED: 1234}, "the Job that packs needs one"
