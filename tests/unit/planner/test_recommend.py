"""Recommendations: the requested name, else the closest recipe that can run."""

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.catalog.hugging_face import NAMES
from megatron_operator.catalog.unsupported_models import why_unsupported
from megatron_operator.planner.matching import is_language_model, size_of
from megatron_operator.planner.recommend import Query, recommend

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


@pytest.mark.parametrize(
    ("model", "gpus", "mode", "best"),
    [
        ("Qwen/Qwen2.5-7B", 8, "pretrain", "qwen2.5-7b"),
        ("qwen/qwen2.5-7b-instruct", 8, "sft", "qwen2.5-7b-sft"),
        ("mistralai/Mixtral-8x7B-v0.1", 64, "pretrain", "mixtral-8x7b"),
        ("Qwen/Qwen3-8B-Base", 8, "pretrain", "qwen3-8b"),
        ("meta-llama/Llama-3.1-8B", 8, "pretrain", "llama3.1-8b"),
        ("deepseek-ai/DeepSeek-V3", 1024, "pretrain", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-V3", 64, "pretrain", "deepseek-v3"),
        ("zai-org/GLM-4.7-Flash", 16, "pretrain", "glm4.7-flash"),
        ("zai-org/GLM-5.2", 416, "pretrain", "glm5.2"),
        ("inclusionAI/Ling-mini-base-2.0", 8, "pretrain", "ling-mini-2.0"),
        ("baidu/ERNIE-4.5-21B-A3B-Base-PT", 16, "pretrain", "ernie4.5-21b-a3b"),
        ("tencent/Hy3-preview-Base", 256, "pretrain", "hy3"),
        ("mistralai/Mistral-Small-24B-Base-2501", 16, "pretrain", "mistral-small-24b"),
        ("XiaomiMiMo/MiMo-7B-Base", 8, "pretrain", "mimo-7b"),
        ("meta-llama/Llama-3.3-70B-Instruct", 32, "sft", "llama3.1-70b-sft"),
        ("7b", 8, "pretrain", "llama2-7b"),
        ("llama3-8b", 32, "lora", "llama3-8b-lora"),
        ("mine/llama3-8b", 8, "pretrain", "llama3-8b"),
        ("qwen3-next-80b-a3b", 64, "pretrain", "qwen3-next-80b-a3b"),
    ],
)
def test_a_model_that_is_named_is_never_replaced(model: str, gpus: int, mode: str, best: str) -> None:
    assert choices(model, gpus, mode=mode)[0].entry.name == best


@pytest.mark.parametrize(
    ("model", "gpus", "mode", "reason"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", 8, "lora", "has the layers of llama3.1-70b"),
        ("deepseek-ai/DeepSeek-R1", 256, "pretrain", "has the layers of deepseek-v3"),
        ("zai-org/GLM-4.7", 128, "pretrain", "has the layers of glm4.5-355b"),
        ("zai-org/GLM-4.7", 128, "sft", "has the layers of glm4.5-355b"),
        ("glm4.7", 16, "lora", "has the layers of glm4.5-355b"),
        ("GLM-4.7", 128, "pretrain", "has the layers of glm4.5-355b"),
        ("zai-org/GLM-4.7-FP8", 128, "pretrain", "has the layers of glm4.5-355b"),
        # Also where it does not fit.
        ("zai-org/GLM-4.7", 64, "pretrain", "has the layers of glm4.5-355b"),
        ("nvidia/Llama-3.1-Nemotron-Nano-8B-v1", 8, "sft", "has the layers of llama3.1-8b"),
    ],
)
def test_another_release_names_the_model_whose_layers_it_has(
    model: str, gpus: int, mode: str, reason: str
) -> None:
    assert choices(model, gpus, mode=mode)[0].reasons[0] == f"{model} {reason}"


@pytest.mark.parametrize("model", ["meta-llama/Llama-3.1-70B-Instruct", "llama3.1-70b", "deepseek-v3"])
def test_the_model_of_the_entry_itself_has_no_such_reason(model: str) -> None:
    assert not any("has the layers of" in reason for reason in choices(model, 256)[0].reasons)


@pytest.mark.parametrize(
    ("function", "gpus", "mode", "best"),
    [
        ("llama3_8b_pretrain_config", 8, "pretrain", "llama3-8b"),
        ("qwen3_30b_a3b_sft_config", 8, "sft", "qwen3-30b-a3b-sft"),
        ("llama31_8b_peft_1gpu_h100_bf16_config", 1, "lora", "llama3.1-8b-lora"),
    ],
)
def test_a_function_of_megatron_bridge_names_its_model(
    function: str, gpus: int, mode: str, best: str
) -> None:
    found = choices(function, gpus, mode=mode)[0]
    assert found.entry.name == best
    assert "parameters" not in found.reasons[0]


@pytest.mark.parametrize(
    ("model", "mode", "fix"),
    [
        ("mistralai/Mistral-7B-v0.3", "sft", "set --mode pretrain, for which it has mistral-7b"),
        ("Qwen/Qwen2.5-3B", "sft", "set --mode pretrain, for which it has qwen2.5-3b"),
        ("qwen3-next-80b-a3b", "lora", "set --mode sft, for which it has qwen3-next-80b-a3b-sft"),
        ("mixtral-8x7b", "lora", "set --mode pretrain, for which it has mixtral-8x7b"),
    ],
)
def test_a_model_that_has_recipes_of_other_modes_is_answered_with_these(
    model: str, mode: str, fix: str
) -> None:
    with pytest.raises(InvalidRecipeError, match=f"no {mode} recipe like '{model}'; {fix}") as refused:
        choices(model, 8, mode=mode)
    assert refused.value.errors[0].field == "--mode"


def test_models_of_its_size_are_named_where_a_model_cannot_be_fine_tuned() -> None:
    with pytest.raises(InvalidRecipeError, match=r"size: qwen2-7b-lora or qwen2\.5-7b-lora$"):
        choices("mistralai/Mistral-7B-v0.3", 8, mode="lora")


def test_only_layouts_of_functions_that_the_operator_starts_count_as_published() -> None:
    # Its function for 8 GPUs is for samples of 32,768 tokens, split over ranks.
    best = choices("qwen3-8b", 8, mode="sft")[0]
    assert not best.published
    assert best.reasons[0] == "its layout is planned; one for 4 x h100-sxm/h200 is published"


@pytest.mark.parametrize("model", ["mosaicml/mpt-7b", "mpt-7b", "Qwen/Qwen9-7B"])
def test_a_model_that_the_catalog_lacks_is_not_replaced_by_one_of_its_size(model: str) -> None:
    with pytest.raises(InvalidRecipeError, match=f"no pretrain recipe like '{model}'"):
        choices(model, 8)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("XiaomiMiMo/MiMo-V2-Flash", "differ in query groups and rotary base"),
        ("moonshotai/Kimi-K3", "it is not in Megatron-Bridge 0.6.2"),
        ("tiiuae/falcon-7b", "it is not in Megatron-Bridge 0.6.2, which has Falcon-H1"),
    ],
)
@pytest.mark.parametrize("mode", ["pretrain", "lora"])
def test_a_known_model_that_no_recipe_trains_is_answered_with_the_reason(
    model: str, reason: str, mode: str
) -> None:
    with pytest.raises(InvalidRecipeError, match=f"no {mode} recipe like '{model}': .*{reason}") as refused:
        choices(model, 256, mode=mode)
    assert "did you mean" not in str(refused.value)


def test_the_reason_of_a_model_is_not_that_of_one_whose_name_goes_on() -> None:
    assert why_unsupported("moonshotai/Kimi-K3") is not None
    assert why_unsupported("moonshotai/Kimi-K35") is None
    assert why_unsupported("moonshotai/Kimi-K2") is None


@pytest.mark.parametrize(
    ("model", "name", "reason"),
    [
        ("tiiuae/Falcon-H1-7B-Base", "falcon-h1-7b", "the kernels of its state-space layers"),
        ("tiiuae/Falcon-H1-1.5B-Deep-Instruct", "falcon-h1-1.5b-deep", "kernels of its state-space layers"),
        (
            "nvidia/Llama-3_3-Nemotron-Super-49B-v1_5",
            "llama3.3-nemotron-super-49b",
            "layers that differ in width",
        ),
    ],
)
def test_a_model_that_is_planned_only_is_named_with_its_reason(model: str, name: str, reason: str) -> None:
    best = choices(model, 256)[0]
    assert best.entry.name == name
    assert best.plan is not None
    assert not best.runnable
    assert any("planned only" in each and reason in each for each in best.reasons)


@pytest.mark.parametrize("model", ["MiniMaxAI/MiniMax-M2", "MiniMaxAI/MiniMax-M2.5", "minimax-m2.7"])
def test_releases_of_the_same_layers_belong_to_one_recipe(model: str) -> None:
    best = choices(model, 256)[0]
    assert best.entry.name == "minimax-m2"
    assert best.runnable


def test_a_model_whose_kernels_the_image_lacks_is_named_with_them() -> None:
    best = choices("qwen3-next-80b-a3b-sft", 64, mode="sft")[0]
    (reason,) = (each for each in best.reasons if each.startswith("planned only"))
    assert "lacks the kernels of its gated delta net (flash-linear-attention)" in reason


def test_another_mode_of_a_model_that_is_planned_only_is_offered_as_such() -> None:
    expected = "set --mode pretrain, for which it has llama3.3-nemotron-super-49b, planned only"
    with pytest.raises(InvalidRecipeError, match=expected):
        choices("nvidia/Llama-3_3-Nemotron-Super-49B-v1", 256, mode="lora")


def test_every_name_of_hugging_face_belongs_to_an_entry() -> None:
    names = LIBRARY.names()
    missing = [entry for entry in NAMES.values() if not any(name.startswith(entry) for name in names)]
    assert missing == []


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


def test_a_later_generation_is_not_the_model_that_is_named() -> None:
    with pytest.raises(InvalidRecipeError, match="no sft recipe like 'kimi-k2'; set --mode pretrain"):
        choices("kimi-k2", 256, mode="sft")


def test_where_nothing_fits_the_reasons_end_with_what_would() -> None:
    best = choices("deepseek-v3", 64)[0]
    assert best.plan is None
    assert best.reasons[-1] == "256 x h100-sxm fits: that layout is published"


def test_a_published_layout_fits_only_where_the_estimate_does() -> None:
    reasons = choices("deepseek-v4-flash", 16)[0].reasons
    assert "32 x h100-sxm needs 399 of 79 GiB, as estimated: that layout is published" in reasons
    assert not [reason for reason in reasons if " fits" in reason]
    assert not [
        reason
        for reason in choices("deepseek-v4-flash", 64)[0].reasons
        if reason.startswith("--mode sft fits")
    ]


@pytest.mark.parametrize(
    ("model", "mode", "best"),
    [
        ("LGAI-EXAONE/K-EXAONE-2.0-750B-A37B", "pretrain", "k-exaone2-750b-a37b"),
        ("stepfun-ai/Step-3.5-Flash", "pretrain", "step3.5-196b-a11b"),
        ("black-forest-labs/FLUX.1-dev", "pretrain", "flux1-12b"),
        ("Qwen/Qwen3-Omni-30B-A3B-Instruct", "sft", "qwen3-omni-30b-a3b-sft"),
    ],
)
def test_the_source_of_an_entry_is_its_name_too(model: str, mode: str, best: str) -> None:
    assert choices(model, 64, mode=mode)[0].entry.name == best


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
