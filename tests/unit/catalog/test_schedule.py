from collections.abc import Callable
from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.catalog import ResolvedRecipe
from megatron_operator.catalog.schedule import batches, largest_batch, scale_learning_rate, tokens

Resolve = Callable[..., ResolvedRecipe]
Refusal = Callable[..., dict[str, str]]

RAMP = "0:32 1M:64"


@pytest.mark.parametrize(
    ("amount", "count"), [("15T", 15 * 10**12), ("1.5B", 1_500_000_000), ("300M", 300_000_000), ("12", 12)]
)
def test_amounts_of_tokens(amount: str, count: int) -> None:
    assert tokens(amount) == count


def test_the_batch_under_a_ramp_is_its_largest() -> None:
    assert largest_batch({"stepBatchSizeSchedule": "0:384 200B:768 400B:1152"}) == 1152


def test_the_batches_of_a_ramp_are_separated_by_commas_too() -> None:
    assert batches({"stepBatchSizeSchedule": "0:384,200B:768, 400B:1152"}) == [384, 768, 1152]
    assert batches({"globalBatchSize": 32}) == [32]
    assert batches({}) == []


def test_tokens_become_iterations_with_a_warmup_in_iterations(resolve: Resolve) -> None:
    training = resolve(recipe="small-1", training={"trainTokens": "1M"}).training
    assert training.train_iters == 1_000_000 // (128 * 32)
    assert training.train_samples is None
    assert training.train_tokens is None


def test_fewer_tokens_than_an_iteration_has_are_one_iteration(resolve: Resolve) -> None:
    resolved = resolve(recipe="small-1", training={"trainTokens": "1K", "lrWarmupIters": 0})
    assert resolved.training.train_iters == 1
    assert "1,000 tokens are less than 1 iteration of 4,096 tokens" in resolved.notes


def test_tokens_become_samples_under_a_batch_ramp(resolve: Resolve) -> None:
    training = resolve(
        recipe="small-1", training={"trainTokens": "10M", "stepBatchSizeSchedule": RAMP}
    ).training
    assert training.train_samples == 10_000_000 // 128
    assert training.train_iters is None
    assert training.global_batch_size is None
    assert training.lr_warmup_samples == 20 * 32


def test_a_warmup_in_iterations_has_the_samples_of_the_first_batches_of_a_ramp(resolve: Resolve) -> None:
    """The batch is 32 up to sample 390, for 13 iterations, and then 64."""
    asked = {"trainTokens": "10M", "stepBatchSizeSchedule": "0:32 50K:64"}
    resolved = resolve(recipe="small-1", training=asked)
    assert resolved.training.lr_warmup_samples == 13 * 32 + 7 * 64
    assert any("lrWarmupIters 20 is lrWarmupSamples 864" in note for note in resolved.notes)


def test_iterations_under_a_batch_ramp_are_rejected(refusal: Refusal) -> None:
    found = refusal(recipe="small-1", training={"trainIters": 100, "stepBatchSizeSchedule": RAMP})
    assert "set trainTokens or trainSamples instead" in found["spec.training.trainIters"]


def test_the_catalogs_warmup_is_converted_to_the_unit_of_the_recipes_length(resolve: Resolve) -> None:
    resolved = resolve(recipe="small-1", training={"trainSamples": 3200})
    assert resolved.training.lr_warmup_samples == 640
    assert resolved.training.lr_warmup_iters is None
    assert any("lrWarmupIters 20 is lrWarmupSamples 640" in note for note in resolved.notes)


def test_a_recipe_that_mixes_iterations_and_samples_is_rejected(refusal: Refusal) -> None:
    found = refusal(recipe="small-1", training={"trainIters": 100, "lrWarmupSamples": 10})
    assert "set lrWarmupIters: Megatron does not mix the two" in found["spec.training.lrWarmupSamples"]


def test_two_lengths_in_one_recipe_are_rejected(refusal: Refusal) -> None:
    found = refusal(recipe="small-1", training={"trainIters": 100, "trainTokens": "1M"})
    assert "trainIters and trainTokens both set the length" in found["spec.training"]


def test_a_warmup_longer_than_the_run_is_rejected_with_its_origin(refusal: Refusal) -> None:
    line = refusal(recipe="small-1", training={"trainIters": 10})["spec.training.lrWarmupIters"]
    assert "a warm-up of 20 iterations (catalog small-1) does not end before the decay of 10" in line


def test_a_fraction_replaces_the_catalogs_warmup(resolve: Resolve) -> None:
    training = resolve(recipe="small-1", training={"trainIters": 10, "lrWarmupFraction": 0.1}).training
    assert training.lr_warmup_iters is None
    assert training.lr_warmup_fraction == 0.1


@pytest.mark.parametrize(("rule", "factor"), [("none", 1), ("linear", 4), ("sqrt", 2)])
def test_the_learning_rate_is_scaled_by_the_rule(resolve: Resolve, rule: str, factor: int) -> None:
    training = resolve(recipe="small-1", training={"globalBatchSize": 128, "lrScaling": rule}).training
    assert training.lr == pytest.approx(1e-3 * factor)
    assert training.min_lr == pytest.approx(1e-4 * factor)
    assert training.lr_scaling is None


def test_a_learning_rate_that_the_recipe_sets_is_not_scaled(resolve: Resolve) -> None:
    asked = {"globalBatchSize": 128, "lrScaling": "linear", "lr": 2e-3}
    training = resolve(recipe="small-1", training=asked).training
    assert training.lr == 2e-3
    assert training.min_lr == pytest.approx(4e-4)


def test_a_rate_of_zero_is_not_reported_as_scaled(resolve: Resolve) -> None:
    asked = {"globalBatchSize": 128, "lrScaling": "linear", "minLr": 0.0}
    resolved = resolve(recipe="small-1", training=asked)
    assert not any("minLr 0" in note for note in resolved.notes)
    layers = {"lr": 1e-3, "minLr": 0.0, "lrScaling": "linear", "globalBatchSize": 128}
    found = Diagnostics(origins={"training.lr": "catalog", "training.minLr": "catalog"})
    scale_learning_rate(layers, 32, found)
    assert [note.split()[0] for note in found.notes] == ["lr"]


def test_a_batch_change_without_a_rule_keeps_the_rate_with_a_note(resolve: Resolve) -> None:
    resolved = resolve(recipe="small-1", training={"globalBatchSize": 128})
    assert resolved.training.lr == 1e-3
    assert any(
        "lr 0.001 is the catalog's for globalBatchSize 32; here it is 128" in n for n in resolved.notes
    )


def test_scaling_without_a_catalog_entry_is_rejected(refusal: Refusal) -> None:
    spec: dict[str, Any] = {
        "model": {"numLayers": 2, "hiddenSize": 64, "numAttentionHeads": 4, "vocabSize": 1000},
        "training": {
            "seqLength": 64,
            "lr": 1e-3,
            "globalBatchSize": 8,
            "trainIters": 10,
            "lrScaling": "sqrt",
        },
    }
    assert list(refusal(**spec)) == ["spec.training.lrScaling"]


@pytest.mark.parametrize("schedule", ["1" * 5000, "0:" + "1" * 5000, "0:²", ":", "0:٣"])
def test_a_ramp_up_that_is_no_list_of_pairs_has_no_largest_batch(schedule: str) -> None:
    assert largest_batch({"stepBatchSizeSchedule": schedule}) is None


def test_the_recipes_decay_is_kept_where_the_length_is_the_catalogs(resolve: Resolve) -> None:
    resolved = resolve(recipe="small-1", training={"lrDecayIters": 500})
    assert resolved.training.lr_decay_iters == 500
    assert not any("dropped" in note for note in resolved.notes)


def test_the_recipes_decay_is_converted_to_the_unit_of_the_catalogs_length(resolve: Resolve) -> None:
    resolved = resolve(recipe="small-1", training={"lrDecaySamples": 16_001})
    assert (resolved.training.lr_decay_iters, resolved.training.lr_decay_samples) == (501, None)
    assert "lrDecaySamples 16,001 is lrDecayIters 501, in the unit of trainIters" in resolved.notes


def test_the_catalogs_warmup_must_end_before_the_recipes_decay(refusal: Refusal) -> None:
    line = refusal(recipe="small-1", training={"lrDecayIters": 10})["spec.training.lrWarmupIters"]
    assert "a warm-up of 20 iterations (catalog small-1) does not end before the decay of 10" in line


def test_the_catalogs_warmup_follows_a_decay_in_samples(small: Any, platform: Any) -> None:
    """Length and warm-up are both the catalog's, in tokens and iterations."""
    decay = {"lrDecaySamples": 50_000_000}
    asked = {"recipe": "llama3-70b", "accelerator": {"type": "h100", "count": 64}, "data": {"mockData": True}}
    spec = MegatronRecipeSpec.model_validate(asked | {"training": decay})
    training = catalog.resolve(spec, platform, small).training
    assert (training.lr_warmup_iters, training.lr_warmup_samples) == (None, 2000 * 1024)
    assert (training.lr_decay_iters, training.lr_decay_samples) == (None, 50_000_000)


@pytest.mark.parametrize("name", ["lrDecay", "lrWarmup"])
def test_a_setting_in_both_units_is_rejected_whoever_sets_the_length(refusal: Refusal, name: str) -> None:
    both = {f"{name}Iters": 50, f"{name}Samples": 3200}
    for length in ({}, {"trainIters": 1000}):
        found = refusal(recipe="small-1", training=both | length)
        assert list(found) == [f"spec.training.{name}Samples"]
        assert f"is set together with {name}Iters" in found[f"spec.training.{name}Samples"]
