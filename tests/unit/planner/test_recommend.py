"""Recommendations: the requested name, else the closest recipe that can run."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest
from megatron_operator import catalog
from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.catalog.hugging_face import NAMES
from megatron_operator.planner.matching import is_language_model
from megatron_operator.planner.recommend import Query, Recommendation, recommend

PLATFORM = PlatformConfig.model_validate(
    {"accelerators": {"h100-sxm": {}, "a100-80": {}}, "image": "trainer"}
)


LIBRARY = catalog.load()


@cache
def choices(
    model: str | None,
    gpus: int,
    accelerator: str | None = "h100-sxm",
    mode: str = "pretrain",
    seq: int | None = None,
) -> list[Recommendation]:
    return recommend(Query(model, gpus, accelerator, mode, seq), PLATFORM, LIBRARY)


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


QUICK_REFERENCE = [
    # What is wanted, as in Megatron-Bridge's recipe index: model, GPUs, mode, tokens of a sample, recipe.
    ("try it for the first time", "llama3.2-1b", 2, "pretrain", None, "llama3.2-1b"),
    ("fine-tune a 7-8B model", "8b", 2, "sft", None, "llama3-8b-sft"),
    ("fine-tune a 7-8B model", "8b", 8, "sft", None, "llama3-8b-sft"),
    ("fine-tune a 7-8B model", "7b", 4, "sft", None, "qwen2-7b-sft"),
    ("LoRA on 1 GPU", "8b", 1, "lora", None, "llama3-8b-lora"),
    ("pretrain a dense 70B", "70b", 32, "pretrain", None, "llama3-70b"),
    ("pretrain a dense 70B", "70b", 64, "pretrain", None, "llama3-70b"),
    ("train a small MoE", "moe", 8, "pretrain", None, "qwen3-30b-a3b"),
    ("train a large MoE (235B+)", "qwen3-235b", 256, "pretrain", None, "qwen3-235b-a22b"),
    ("train a large MoE (235B+)", "qwen3-235b", 512, "pretrain", None, "qwen3-235b-a22b"),
    ("long-context training", "llama3-8b", 16, "pretrain", 131072, "llama3-8b-128k"),
    ("VLM fine-tuning", "qwen3-vl-8b", 4, "sft", None, "qwen3-vl-8b-sft"),
    ("VLM fine-tuning", "qwen3-vl-8b", 8, "sft", None, "qwen3-vl-8b-sft"),
    ("diffusion training", "diffusion", 8, "pretrain", None, "wan2.1-1.3b"),
]
DECISION_TREE = [
    ("a recipe for size and mode: use it", "llama3-8b", 8, "pretrain", None, "llama3-8b"),
    ("no exact match: the closest size", "llama3-20b", 8, "pretrain", None, "llama3-8b"),
    ("SFT", "llama3-70b", 32, "sft", None, "llama3-70b-sft"),
    ("PEFT has the lowest requirement", "llama3-8b", 1, "lora", None, "llama3-8b-lora"),
    ("1 GPU: only PEFT", None, 1, "lora", None, "qwen2-7b-lora"),
    ("8 GPUs: 8B to 16B, small MoE", None, 8, "pretrain", None, "qwen3-30b-a3b"),
    ("16 to 64 GPUs: 70B dense, medium MoE", None, 32, "pretrain", None, "qwen2-72b"),
    ("128+ GPUs: 405B+, large MoE", None, 256, "pretrain", None, "deepseek-v3"),
    ("128+ GPUs: 405B+, large MoE", "deepseek", 256, "pretrain", None, "deepseek-v3"),
    ("128+ GPUs: 405B+, large MoE", "kimi", 512, "pretrain", None, "kimi-k2"),
    ("above 8K: the variant for it", "llama3-8b", 4, "pretrain", 16384, "llama3-8b-16k"),
    ("above 8K: the variant for it", "llama3-8b", 8, "pretrain", 65536, "llama3-8b-64k"),
    ("above 8K: the nearest variant", "llama3-8b", 16, "pretrain", 100_000, "llama3-8b-128k"),
    ("up to 8K: the default", "llama3-8b", 8, "pretrain", 4096, "llama3-8b"),
]
INDEX = [
    # Its tables: the smallest number of GPUs of each row.
    ("Llama", "llama3.2-1b", 2, "pretrain", None, "llama3.2-1b"),
    ("Llama", "llama3-8b", 2, "pretrain", 8192, "llama3-8b"),
    ("Llama", "llama3-70b", 32, "pretrain", 8192, "llama3-70b"),
    ("Llama", "llama3-70b", 64, "pretrain", 16384, "llama3-70b-16k"),
    ("Llama", "llama3-70b", 128, "pretrain", 65536, "llama3-70b-64k"),
    ("Llama", "llama3.1-405b", 128, "pretrain", 8192, "llama3.1-405b"),
    ("Llama", "llama3-8b", 2, "sft", None, "llama3-8b-sft"),
    ("Llama", "llama3-70b", 16, "sft", None, "llama3-70b-sft"),
    # The index has 64 for it, where full fine-tuning needs 110 GiB of each GPU; its function is for 128.
    ("Llama", "llama3.1-405b", 128, "sft", None, "llama3.1-405b-sft"),
    ("Llama", "llama3-70b", 8, "lora", None, "llama3-70b-lora"),
    ("Llama", "llama3.1-405b", 32, "lora", None, "llama3.1-405b-lora"),
    ("Qwen3 MoE", "qwen3-30b-a3b", 8, "pretrain", None, "qwen3-30b-a3b"),
    ("Qwen3 MoE", "qwen3-30b-a3b", 8, "sft", None, "qwen3-30b-a3b-sft"),
    ("Qwen3 MoE", "qwen3-235b-a22b", 256, "sft", None, "qwen3-235b-a22b-sft"),
    ("DeepSeek", "deepseek-v2-lite", 8, "pretrain", None, "deepseek-v2-lite"),
    ("DeepSeek", "deepseek-v2", 128, "pretrain", None, "deepseek-v2"),
    ("DeepSeek", "deepseek-v3", 256, "pretrain", None, "deepseek-v3"),
    ("GLM-4.5", "glm4.5-355b", 256, "pretrain", None, "glm4.5-355b"),
    ("GLM-4.5", "glm4.5-air", 32, "sft", None, "glm4.5-air-sft"),
    ("others", "nemotron4-15b", 8, "pretrain", None, "nemotron4-15b"),
]


@pytest.mark.parametrize(
    ("want", "model", "gpus", "mode", "seq", "best"), [*QUICK_REFERENCE, *DECISION_TREE, *INDEX]
)
def test_every_row_of_the_recipe_index_finds_its_recipe(
    want: str, model: str | None, gpus: int, mode: str, seq: int | None, best: str
) -> None:
    found = choices(model, gpus, mode=mode, seq=seq)
    assert found[0].entry.name == best, want
    assert found[0].plan is not None, found[0].reasons
    assert found[0].plan.world_size == gpus
    assert all(recommendation.reasons for recommendation in found)


WHOLE_INDEX = {
    # The models of its tables by mode: what Megatron-Bridge 0.6.2 has no function for is not in the list.
    ("pretrain", "sft", "lora"): (
        "llama3.2-1b llama3-8b llama3-70b llama3.1-405b"
        " qwen2-0.5b qwen2-1.5b qwen2-7b qwen2-72b"
        " qwen2.5-0.5b qwen2.5-1.5b qwen2.5-7b qwen2.5-14b qwen2.5-32b qwen2.5-72b"
        " qwen3-0.6b qwen3-1.7b qwen3-4b qwen3-8b qwen3-14b qwen3-32b qwen3-30b-a3b qwen3-235b-a22b"
        " glm4.5-355b glm4.5-air gemma2-2b gemma2-9b gemma2-27b gemma3-1b"
        " nemotron-h-8b nemotron-h-56b nemotron3-nano-30b-a3b nemotron3-super-120b-a12b nemotron-nano2-9b"
        " moonlight-16b-a3b olmoe-7b gpt-oss-20b gpt-oss-120b qwen3-vl-8b qwen3-vl-30b-a3b qwen3-vl-235b-a22b"
    ),
    ("pretrain", "sft"): "qwen3-next-80b-a3b minimax-m3 wan2.1-1.3b wan2.1-14b flux1-12b",
    ("pretrain",): (
        "deepseek-v2-lite deepseek-v2 deepseek-v3 nemotron4-15b nemotron4-340b gpt3-175b kimi-k2 qwen2.5-3b"
    ),
    ("sft", "lora"): (
        "ministral3-14b gemma3-vl-4b gemma3-vl-12b gemma3-vl-27b qwen2.5-vl-7b glm4.5v-106b"
        " nemotron-nano2-vl-12b"
    ),
}
MODELS = [(modes, model) for modes, models in WHOLE_INDEX.items() for model in models.split()]


@contextmanager
def without_planning() -> Iterator[None]:
    raise InvalidRecipeError([FieldError("spec", "is not planned", "read the name only")])
    yield


@pytest.mark.parametrize(("modes", "model"), MODELS, ids=[model for _, model in MODELS])
def test_every_model_of_the_recipe_index_is_found_in_every_mode_that_it_has(
    modes: tuple[str, ...], model: str
) -> None:
    for mode in ("pretrain", "sft", "lora"):
        query = Query(model, 8, "h100-sxm", mode, None)
        if mode not in modes:
            with pytest.raises(InvalidRecipeError, match=rf"no {mode} recipe like '{model}'; set --mode"):
                recommend(query, PLATFORM, LIBRARY, without_planning)
            continue
        best = recommend(query, PLATFORM, LIBRARY, without_planning)[0].entry
        assert mode in best.modes
        assert best.name in (model, f"{model}-{mode}")


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
    ],
)
def test_a_later_release_names_the_model_whose_layers_it_has(
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


@pytest.mark.parametrize("model", ["tiiuae/falcon-7b", "falcon-7b", "Qwen/Qwen9-7B"])
def test_a_model_that_the_catalog_lacks_is_not_replaced_by_one_of_its_size(model: str) -> None:
    with pytest.raises(InvalidRecipeError, match=f"no pretrain recipe like '{model}'"):
        choices(model, 8)


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
    best = choices("gemma4-vl-26b", 256, mode="lora")[0]
    assert best.batch == 256
    assert "globalBatchSize 256: its 32 cannot be divided over 128 ranks" in best.reasons


def test_a_raised_batch_has_a_micro_batch_of_the_function_for_each_rank() -> None:
    best = choices("step3.5-196b-a11b", 2048)[0]
    assert best.plan is not None
    assert best.batch == 2 * 2048


def test_a_later_generation_is_not_the_model_that_is_named() -> None:
    with pytest.raises(InvalidRecipeError, match="no sft recipe like 'kimi-k2'; set --mode pretrain"):
        choices("kimi-k2", 256, mode="sft")


def test_where_nothing_fits_the_reasons_end_with_what_would() -> None:
    best = choices("deepseek-v3", 64)[0]
    assert best.plan is None
    assert best.reasons[-1] == "256 x h100-sxm fits: that layout is published"


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
    assert "of 79.1 GiB, as estimated; try a smaller microBatchSize" in caution


def test_other_hardware_and_modes_that_are_published_are_named() -> None:
    small = PlatformConfig.model_validate({"image": "i", "accelerators": {"l40s": {"hardware": "l40s"}}})
    reasons = recommend(Query("qwen3-vl-235b", 64, "l40s", "pretrain", None), small, LIBRARY)[0].reasons
    assert "64 x b200 or gb200 or gb300 fits: that layout is published" in reasons
    reasons = choices("qwen3-vl-235b", 32)[0].reasons
    assert "256 x h100-sxm fits: that layout is published" in reasons
    assert reasons[-1] == "--mode sft is published for 32 x h100-sxm: qwen3-vl-235b-a22b-sft"
