"""The recipe for a wish: the name that is asked for, else the nearest that runs."""

import pytest
from megatron_operator import catalog
from megatron_operator.api.errors import Refused
from megatron_operator.api.platform import PlatformConfig
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


def test_of_a_family_one_that_runs_comes_first_and_the_others_say_why_not() -> None:
    found = choices("llama3", 8)
    assert found[0].plan is not None
    [large] = [choice for choice in found if choice.entry.name == "llama3-70b"]
    assert large.plan is None
    assert "even the leanest layout" in large.reasons[0]


def test_a_long_sequence_is_split_by_context_parallelism() -> None:
    best = choices("llama3-8b", 64, seq=65536)[0]
    assert best.plan is not None
    assert best.plan.context_parallel_size > 1
    assert not best.published
    assert any("context parallelism" in reason for reason in best.reasons)


def test_what_is_not_there_is_refused_with_what_can_be_asked() -> None:
    with pytest.raises(Refused, match=r"no pretrain recipe like 'gemini'.*a size such as 8b"):
        choices("gemini", 8)
