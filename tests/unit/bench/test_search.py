"""The layouts that the planner finds by itself against the published ones."""

from bench import search
from bench.search import Found


def test_the_search_misses_none_of_the_largest_published_layouts() -> None:
    runs = search.largest(search.RUNS)
    assert len(runs) == search.RUNS
    assert {each.function for each in runs if each.longer > search.WITHIN} == set()
    assert any(each.function == "llama31_405b_pretrain_512gpu_h100_bf16_config" for each in runs)


def test_the_worst_search_is_named() -> None:
    runs = [Found(name, 1, "TP 1", 10.0, "TP 2", seconds, 0.1) for name, seconds in (("a", 12.0), ("b", 9.0))]
    expected = "1 of 2 searched layouts take at most 10% longer; worst +20.0% (a)"
    assert search.summary(runs) == expected
