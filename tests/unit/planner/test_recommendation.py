"""The recipe for a wish: the name that is asked for, else the nearest that runs."""

from pathlib import Path

import pytest
from megatron_operator import catalog
from megatron_operator.api.errors import Refused
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.catalog import Catalog
from megatron_operator.planner.recommendation import Choice, Wish, recommend

PLATFORM = PlatformConfig.model_validate(
    {"accelerators": {"h100-sxm": {}, "a100-80": {}}, "image": "trainer"}
)


def choices(
    model: str | None,
    gpus: int,
    accelerator: str | None = "h100-sxm",
    mode: str = "pretrain",
    seq: int | None = None,
) -> list[Choice]:
    return recommend(Wish(model, gpus, accelerator, mode, seq), PLATFORM, catalog.load())


def test_the_name_that_is_asked_for_comes_first() -> None:
    best = choices("llama3-8b", 8)[0]
    assert best.entry.name == "llama3-8b"
    assert best.published
    assert best.plan is not None


def test_a_size_finds_models_of_like_size() -> None:
    found = choices("8b", 8)
    assert found[0].entry.name == "llama3-8b"
    assert all(5e9 <= (choice.parameters or 0) <= 13e9 for choice in found)


def test_of_a_family_one_that_runs_comes_first() -> None:
    found = choices("llama3", 8)
    assert found[0].entry.name == "llama3-8b"
    assert found[0].plan is not None


def test_what_cannot_run_says_why_not() -> None:
    [large, *_] = choices("llama3-70b", 8)
    assert large.plan is None
    assert not large.runs
    assert "even the leanest layout" in large.reasons[0]


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
    assert found[0].runs
    assert all(choice.reasons for choice in found)


@pytest.mark.parametrize(
    ("gpus", "least", "most", "most_with_experts"),
    [(1, 1e9, 4e9, 8e9), (8, 8e9, 16e9, 32e9), (64, 16e9, 80e9, 160e9), (256, 400e9, 1e13, 1e13)],
)
def test_without_a_model_the_size_suits_the_count(
    gpus: int, least: float, most: float, most_with_experts: float
) -> None:
    best = choices(None, gpus)[0]
    size = best.parameters or 0
    assert best.runs
    assert least <= size <= (most_with_experts if best.entry.model.num_experts else most)


FINE_TUNED = """
entries:
  small-8b-sft:
    engine: bridge
    modes: [sft]
    description: Full fine-tuning of an 8B
    layouts: [{accelerators: [h100-sxm], count: 2, source: a list}]
    source: a list
  small-8b-lora:
    engine: bridge
    modes: [lora]
    description: LoRA of an 8B
    layouts: [{accelerators: [h100-sxm], count: 1, source: a list}]
    source: a list
  seeing-4b-sft:
    engine: bridge
    modes: [sft]
    description: Fine-tuning of a vision-language model
    layouts: [{accelerators: [h100-sxm], count: 4, source: a list}]
    source: a list
"""


@pytest.fixture
def fine_tuning(tmp_path: Path) -> Catalog:
    (tmp_path / "tuned.yaml").write_text(FINE_TUNED)
    return catalog.load(tmp_path)


@pytest.mark.parametrize(
    ("model", "gpus", "mode", "best", "why"),
    [
        ("small-8b", 2, "sft", "small-8b-sft", "its layout for these accelerators is published"),
        ("small-8b", 8, "sft", "small-8b-sft", "4 copies, by data parallelism, of the published layout for"),
        ("small-8b", 1, "lora", "small-8b-lora", "its layout for these accelerators is published"),
        ("small", 4, "sft", "small-8b-sft", "2 copies"),
        ("seeing", 8, "sft", "seeing-4b-sft", "2 copies"),
    ],
)
def test_fine_tuning_takes_published_layouts(
    fine_tuning: Catalog, model: str, gpus: int, mode: str, best: str, why: str
) -> None:
    found = recommend(Wish(model, gpus, "h100-sxm", mode, None), PLATFORM, fine_tuning)[0]
    assert found.entry.name == best
    assert found.runs
    assert why in found.reasons[0]


def test_fine_tuning_on_too_few_accelerators_names_the_mode_that_fits(fine_tuning: Catalog) -> None:
    found = recommend(Wish("small-8b", 1, "h100-sxm", "sft", None), PLATFORM, fine_tuning)[0]
    assert not found.runs
    assert "no published layout for 1 x h100-sxm (published: 2 x h100-sxm)" in found.reasons[0]
    assert found.reasons[-1] == "--mode lora fits: small-8b-lora"


def test_an_accelerator_that_is_not_there_is_refused() -> None:
    with pytest.raises(Refused, match=r"--accelerator: the platform has no accelerator 'tpu'"):
        choices("8b", 8, accelerator="tpu")


def test_a_long_sequence_is_split_by_context_parallelism() -> None:
    best = choices("llama3-8b", 64, seq=65536)[0]
    assert best.plan is not None
    assert best.plan.context_parallel_size > 1
    assert not best.published
    assert any("context parallelism" in reason for reason in best.reasons)


def test_what_is_not_there_is_refused_with_what_can_be_asked() -> None:
    with pytest.raises(Refused, match=r"no pretrain recipe like 'gemini'.*a size such as 8b"):
        choices("gemini", 8)
