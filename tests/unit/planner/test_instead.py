"""What fits where no recipe that the operator can start does."""

import pytest
from megatron_operator import catalog
from megatron_operator.cli.default_platform import default_platform
from megatron_operator.planner.candidates import Query
from megatron_operator.planner.instead import names_one_model, what_fits
from megatron_operator.planner.recommend import recommend

LIBRARY = catalog.load()


def fits(model: str, gpus: int, mode: str = "pretrain") -> list[str]:
    query, platform = Query(model, gpus, None, mode, None), default_platform()
    return what_fits(query, recommend(query, platform, LIBRARY), platform, LIBRARY)


def test_a_larger_count_adapters_and_a_smaller_model_of_the_family_are_named() -> None:
    expected = ["llama3-70b on 16", "llama3-70b-lora on 8 (--mode lora)", "llama3-8b on 8"]
    assert fits("70b", 8) == fits("llama3-70b", 8) == expected


def test_a_model_without_adapters_that_fit_gets_none() -> None:
    assert fits("405b", 8) == ["llama3.1-405b on 128", "llama3-8b on 8"]


def test_a_language_model_is_no_answer_for_another_kind() -> None:
    assert fits("diffusion", 8) == []


@pytest.mark.parametrize(
    ("model", "one"), [(None, False), ("70b", False), ("1.5B", False), ("vlm", False), ("llama3", True)]
)
def test_a_size_or_a_kind_names_no_model(model: str | None, one: bool) -> None:
    assert names_one_model(model) is one


@pytest.mark.parametrize(("gpus", "more"), [(12, 16), (20, 24)])
def test_the_next_count_of_whole_nodes_is_named(gpus: int, more: int) -> None:
    assert fits("llama3-8b", gpus)[0] == f"llama3-8b on {more}"
