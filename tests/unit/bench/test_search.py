"""The layouts that the planner finds by itself against the published ones."""

from megatron_operator import catalog

from bench import search
from bench.search import Found


def test_the_search_misses_none_of_the_largest_published_layouts() -> None:
    runs = search.largest(search.RUNS)
    assert len(runs) == search.RUNS
    assert {each.function for each in runs if each.longer > search.WITHIN} == set()
    assert any(each.function == "llama31_405b_pretrain_512gpu_h100_bf16_config" for each in runs)


def test_the_published_layouts_of_experts_are_as_good_with_the_switches_that_they_were_chosen_for() -> None:
    """Without these EP 64 spends half of a step on an exchange that nothing hides."""
    name = "deepseek_v3_pretrain_1024gpu_h100_fp8sc_config"
    function = catalog.load().function(name)
    assert function is not None
    plain = search.found(function)
    assert plain is not None
    assert plain.longer < -0.3
    assert plain.published_exchange > 0.4 * plain.published_seconds
    [overlapped] = search.overlapped([plain])
    assert abs(overlapped.longer) <= search.WITHIN


def test_the_worst_search_is_named() -> None:
    runs = [
        Found(name, 1, "TP 1", 10.0, 0.0, "TP 2", seconds, 0.0, 0.1)
        for name, seconds in (("a", 12.0), ("b", 9.0), ("c", 8.0))
    ]
    expected = "2 of 3 searched layouts take at most 10% longer, 1 also at most that less; worst +20.0% (a)"
    assert search.summary(runs) == expected
