"""Recommendations: the requested name, else the closest recipe that can run."""

import pytest
from megatron_operator import catalog
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.planner.matching import is_language_model
from megatron_operator.planner.recommend import Query, Recommendation, recommend

PLATFORM = PlatformConfig.model_validate(
    {"accelerators": {"h100-sxm": {}, "a100-80": {}}, "image": "trainer"}
)


def choices(
    model: str | None,
    gpus: int,
    accelerator: str | None = "h100-sxm",
    mode: str = "pretrain",
    seq: int | None = None,
) -> list[Recommendation]:
    return recommend(Query(model, gpus, accelerator, mode, seq), PLATFORM, catalog.load())


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


def test_a_recipe_that_cannot_run_has_the_reason() -> None:
    [large, *_] = choices("llama3-70b", 8)
    assert large.plan is None
    assert "even the most memory-efficient layout" in large.reasons[0]


@pytest.mark.parametrize(
    ("model", "gpus", "seq", "best"),
    [
        # The quick reference of Megatron-Bridge's recipe index.
        (None, 2, None, "llama3.2-3b"),
        ("70b", 32, None, "llama3-70b"),
        ("70b", 64, None, "llama3-70b"),
        ("moe", 8, None, "qwen3-30b-a3b"),
        ("235b", 256, None, "qwen3-235b-a22b"),
        ("llama3-8b", 16, 16384, "llama3-8b-16k"),
        ("llama3-8b", 32, 65536, "llama3-8b-64k"),
        ("llama3-8b", 64, 131072, "llama3-8b-128k"),
        # Its decision tree.
        ("Llama3-8B", 8, None, "llama3-8b"),
        ("llama3-20b", 8, None, "llama3-8b"),
        ("llama3-8b", 8, 4096, "llama3-8b"),
        ("deepseek", 256, None, "deepseek-v3"),
        ("kimi", 512, None, "kimi-k2"),
    ],
)
def test_every_row_of_the_quick_reference_finds_its_recipe(
    model: str | None, gpus: int, seq: int | None, best: str
) -> None:
    found = choices(model, gpus, seq=seq)
    assert found[0].entry.name == best
    assert found[0].plan is not None
    assert all(recommendation.reasons for recommendation in found)


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


@pytest.mark.parametrize(
    ("model", "gpus", "mode", "best"),
    [
        # The quick reference: a 7-8B on 2 to 8, LoRA on 1, MoE small and large, a VLM on 4 to 8, diffusion.
        ("8b", 2, "sft", "llama3-8b-sft"),
        ("8b", 8, "sft", "llama3-8b-sft"),
        ("7b", 4, "sft", "qwen2-7b-sft"),
        ("8b", 1, "lora", "llama3-8b-lora"),
        ("moe", 8, "sft", "qwen3-30b-a3b-sft"),
        ("qwen3-235b", 256, "sft", "qwen3-235b-a22b-sft"),
        ("qwen3-vl-8b", 4, "sft", "qwen3-vl-8b-sft"),
        ("diffusion", 8, "sft", "wan2.1-1.3b-sft"),
        # The index of recipes, by model and mode.
        ("llama3-70b", 32, "sft", "llama3-70b-sft"),
        ("llama3-70b", 8, "lora", "llama3-70b-lora"),
        ("llama3.1-405b", 32, "lora", "llama3.1-405b-lora"),
        ("qwen3-30b-a3b", 8, "lora", "qwen3-30b-a3b-lora"),
        ("glm4.5-air", 32, "sft", "glm4.5-air-sft"),
    ],
)
def test_fine_tuning_finds_its_recipe(model: str, gpus: int, mode: str, best: str) -> None:
    found = choices(model, gpus, mode=mode)
    assert found[0].entry.name == best
    assert found[0].plan is not None
    assert found[0].plan.world_size == gpus
    assert mode in found[0].entry.modes
    assert any("Megatron-Bridge" in reason for reason in found[0].reasons)


@pytest.mark.parametrize(("gpus", "mode"), [(1, "lora"), (2, "sft"), (8, "sft"), (8, "lora"), (64, "sft")])
def test_without_a_name_a_language_model_is_recommended(gpus: int, mode: str) -> None:
    best = choices(None, gpus, mode=mode)[0]
    assert best.plan is not None
    assert is_language_model(best.entry)


def test_one_accelerator_only_fits_lora() -> None:
    [pretrain, *_], [sft, *_] = choices("8b", 1), choices("8b", 1, mode="sft")
    assert pretrain.plan is None
    assert sft.plan is None
    assert pretrain.reasons[-1] == sft.reasons[-1] == "--mode lora fits: llama3-8b-lora"


def test_lora_that_needs_more_accelerators_states_how_many() -> None:
    best = choices("llama3-70b", 1, mode="lora")[0]
    assert best.plan is None
    assert "1 is not a multiple of 8" in best.reasons[0]


def test_an_unknown_accelerator_is_rejected() -> None:
    with pytest.raises(InvalidRecipeError, match=r"--accelerator: the platform has no accelerator 'tpu'"):
        choices("8b", 8, accelerator="tpu")


def test_a_long_sequence_is_split_by_context_parallelism() -> None:
    best = choices("llama3-8b", 64, seq=65536)[0]
    assert best.plan is not None
    assert best.plan.context_parallel_size > 1
    assert not best.published
    assert any("context parallelism" in reason for reason in best.reasons)


def test_an_unknown_model_is_rejected_with_valid_queries() -> None:
    with pytest.raises(InvalidRecipeError, match=r"no pretrain recipe like 'gemini'.*a size such as 8b"):
        choices("gemini", 8)
