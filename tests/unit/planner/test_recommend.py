"""Recommendations: the requested name, else the closest recipe that can run."""

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.planner.candidates import Query
from megatron_operator.planner.matching import is_language_model, size_of
from megatron_operator.planner.recommend import recommend

from tests.unit.planner.recommendations import LIBRARY, choices


def test_the_requested_name_is_first() -> None:
    best = choices("llama3-8b", 8)[0]
    assert best.entry.name == "llama3-8b"
    assert best.published
    assert best.plan is not None


def test_a_size_finds_models_of_similar_size() -> None:
    found = choices("8b", 8)
    assert found[0].entry.name == "llama3-8b"
    assert all(5e9 <= (recommendation.parameters or 0) <= 13e9 for recommendation in found)


def test_a_runnable_recipe_of_a_family_is_first() -> None:
    found = choices("llama3", 8)
    assert found[0].entry.name == "llama3-8b"
    assert found[0].plan is not None


def test_of_a_family_the_member_whose_layout_uses_most_of_the_accelerators_is_first() -> None:
    assert choices("qwen2", 256)[0].entry.name == "qwen2-72b"
    assert choices("qwen2", 2)[0].entry.name == "qwen2-7b"


def test_a_recipe_that_cannot_run_has_the_reason() -> None:
    [large, *_] = choices("llama3-70b", 8)
    assert large.plan is None
    assert "even the most memory-efficient layout" in large.reasons[0]


def test_the_reason_is_what_another_batch_would_not_change() -> None:
    """4,096 samples do not suit 1,000 ranks, but with 5,000 DeepSeek-V3 still needs more memory."""
    best = choices("deepseek-v3", 1000)[0]
    assert best.plan is None
    assert "globalBatchSize" not in best.reasons[0]
    assert "even the most memory-efficient layout" in best.reasons[0]


def test_the_closest_size_of_a_family_is_named_as_such() -> None:
    assert choices("llama3-20b", 8)[0].reasons[0] == (
        "the catalog has no llama3-20b; closest of its family: 8.0 billion parameters"
    )


def test_a_runner_up_does_not_claim_that_the_catalog_lacks_the_model_that_is_first() -> None:
    first, *others = choices("qwen3-30b-a3b", 8)
    assert first.entry.name == "qwen3-30b-a3b"
    assert "qwen3-14b" in [each.entry.name for each in others]
    assert not [reason for each in others for reason in each.reasons if "the catalog has no" in reason]


@pytest.mark.parametrize("model", ["", "meta-llama/", "0b", "0.0b", "llama3-0b"])
def test_a_name_without_a_model_or_a_size_of_zero_is_rejected(model: str) -> None:
    with pytest.raises(InvalidRecipeError, match=f"no pretrain recipe like '{model}'"):
        choices(model, 8)


def test_a_batch_that_cannot_be_divided_is_raised_and_stated() -> None:
    best = choices("flux1-12b", 256)[0]
    assert best.batch == 256
    assert "globalBatchSize 256: its 16 cannot be divided over 128 ranks" in best.reasons


def test_a_raised_batch_has_a_micro_batch_of_the_function_for_each_rank() -> None:
    best = choices("gemma2-9b", 2048)[0]
    assert best.plan is not None
    assert best.batch == 2 * 2048


def test_where_nothing_fits_the_reasons_end_with_what_would() -> None:
    best = choices("deepseek-v3", 64)[0]
    assert best.plan is None
    assert best.reasons[-1] == "256 x h100-sxm fits: that layout is published"


def test_a_published_layout_fits_only_where_the_estimate_does() -> None:
    reasons = choices("deepseek-v4-flash", 16)[0].reasons
    [published] = [each for each in reasons if each.startswith("32 x h100-sxm needs ")]
    assert published.endswith(", as estimated: that layout is published")
    assert not [reason for reason in reasons if " fits" in reason]
    assert not [
        reason
        for reason in choices("deepseek-v4-flash", 64)[0].reasons
        if reason.startswith("--mode sft fits")
    ]


def test_what_the_operator_starts_precedes_what_it_does_not() -> None:
    runnable = [each.runnable for each in choices("7b", 8)]
    assert runnable == sorted(runnable, reverse=True)


@pytest.mark.parametrize(
    ("gpus", "least", "most", "most_with_experts"),
    [(1, 1e9, 4e9, 8e9), (8, 8e9, 16e9, 32e9), (64, 16e9, 80e9, 160e9), (256, 400e9, 1e13, 1e13)],
)
def test_without_a_model_the_size_suits_the_accelerators(
    gpus: int, least: float, most: float, most_with_experts: float
) -> None:
    best = choices(None, gpus)[0]
    size = best.parameters or 0
    assert best.plan is not None
    assert least <= size <= (most_with_experts if best.entry.model.num_experts else most)


@pytest.mark.parametrize(("gpus", "mode"), [(1, "lora"), (2, "sft"), (8, "sft"), (8, "lora"), (64, "sft")])
def test_without_a_name_a_language_model_is_recommended(gpus: int, mode: str) -> None:
    best = choices(None, gpus, mode=mode)[0]
    assert best.plan is not None
    assert is_language_model(best.entry)


def test_one_accelerator_only_fits_lora() -> None:
    [pretrain, *_], [sft, *_] = choices("8b", 1), choices("llama3-8b", 1, mode="sft")
    assert pretrain.plan is None
    assert sft.plan is None
    assert pretrain.reasons[-1] == sft.reasons[-1] == "--mode lora fits: llama3-8b-lora"


def test_lora_that_needs_more_accelerators_states_how_many() -> None:
    best = choices("llama3-70b", 1, mode="lora")[0]
    assert best.plan is None
    assert "needs 144.5 GiB of h100-sxm's 79.1 GiB; use 2 or more" in best.reasons[0]


def test_an_unknown_accelerator_is_rejected() -> None:
    with pytest.raises(InvalidRecipeError, match=r"--accelerator: the platform has no accelerator 'x900'"):
        choices("8b", 8, accelerator="x900")


def test_a_long_sequence_is_split_by_context_parallelism() -> None:
    best = choices("llama3-8b", 64, seq=65536)[0]
    assert best.plan is not None
    assert best.plan.context_parallel_size > 1
    assert not best.published
    assert any("context parallelism" in reason for reason in best.reasons)


def test_an_unknown_model_is_rejected_with_valid_queries() -> None:
    with pytest.raises(InvalidRecipeError, match=r"no pretrain recipe like 'gemini'.*a size such as 8b"):
        choices("gemini", 8)


def test_of_a_kind_what_the_operator_starts_comes_first() -> None:
    runnable = [each.runnable for each in choices("moe", 64)]
    assert runnable == sorted(runnable, reverse=True)
    assert runnable[0]


def test_where_nothing_of_a_kind_fits_the_one_that_needs_the_least_comes_first() -> None:
    entries = [each.entry for each in choices("moe", 1)]
    sizes = [size_of(each) or 0 for each in entries]
    assert sizes == sorted(sizes)
    assert entries[0].name == "olmoe-7b"


def test_a_function_for_the_sequences_that_is_not_started_is_named_with_the_reason() -> None:
    best = choices("qwen3-0.6b", 8, mode="sft", seq=131072)[0]
    assert best.plan is not None
    [named] = [each for each in best.reasons if "qwen3_600m_sft_8gpu_h100_bf16_128k_config" in each]
    assert "CP 8 on 8 x h100-sxm/h200; the operator does not start it" in named
    assert not any("contextParallelSize 2, 4 or 8" in note for note in best.plan.notes)


def test_a_published_layout_above_the_estimated_memory_is_named_as_such() -> None:
    best = choices("qwen2.5-vl-3b", 1, mode="sft")[0]
    assert best.published
    [caution] = [each for each in best.reasons if each.startswith("memory may not suffice: ")]
    assert "of 79.1 GiB, as estimated; microBatchSize 1 needs 78.2 GiB" in caution


def test_other_hardware_and_modes_that_are_published_are_named() -> None:
    small = PlatformConfig.model_validate({"image": "i", "accelerators": {"l40s": {"hardware": "l40s"}}})
    reasons = recommend(Query("qwen3-235b", 64, "l40s", "pretrain", None), small, LIBRARY)[0].reasons
    assert "64 x gb200 or b200 or b300 fits: that layout is published" in reasons
    reasons = choices("glm5.2", 64)[0].reasons
    assert "416 x h100-sxm fits: that layout is published" in reasons
    assert reasons[-1] == "--mode sft is published for 416 x h100-sxm: glm5.2-sft"


def test_a_recipe_that_trains_a_projector_alone_stands_for_no_model_that_is_pretrained() -> None:
    for asked in ("moe", "30b", None):
        found = choices(asked, 8)
        assert not [each.entry.name for each in found if each.entry.aligns_projector]
    assert [each.entry.aligns_projector for each in choices("qwen3-vl-30b-a3b", 8)][:1] == [True]


def test_of_a_kind_what_fits_comes_before_a_published_layout_far_above_the_memory() -> None:
    found = choices("vlm", 8, mode="sft")
    beyond = [each.entry.name for each in found if not each.fits]
    assert found[0].fits
    assert beyond == [found[-1].entry.name] == ["qwen3-vl-30b-a3b-sft"]


def test_a_smaller_micro_batch_is_no_advice_where_none_fits() -> None:
    [best, *_] = choices("qwen3-vl-30b-a3b", 8, mode="sft")
    assert "memory may not suffice: 100.0 of 79.1 GiB, as estimated" in best.reasons


def test_the_nearest_batch_that_a_layout_divides_is_stated() -> None:
    [best, *_] = choices("llama3-70b", 1000)
    assert best.batch == 1000
    assert best.plan is not None
    assert best.plan.data_parallel_size < 1000
