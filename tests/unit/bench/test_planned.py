"""The error of the planner as its user sees it."""

from bench import planned
from bench.planned import Seen, summary
from bench.published import document


def seen(speed: float | None, model: str = "llama3-8b", note: str = "") -> Seen:
    return Seen("f", model, "fp8", "b200", 100.0, speed, note)


def test_errors_are_grouped_and_a_refusal_counts_in_full() -> None:
    lines = summary([seen(110.0), seen(80.0), seen(None, "kimi-k2")])
    assert lines[0].split() == ["all", "layouts", "3", "mean", "43.3%", "bias", "-36.7%", "worst", "-100.0%"]
    assert any(line.split()[:2] == ["model", "kimi-k2"] for line in lines)
    assert any(line.split()[:3] == ["hardware", "b200", "3"] for line in lines)


def test_runs_with_less_than_the_function_has_are_separate() -> None:
    lines = [line.split() for line in summary([seen(110.0), seen(50.0, note="left out of f: flex")])]
    assert ["run", "as", "published", "1", "mean", "10.0%", "bias", "+10.0%", "worst", "+10.0%"] in lines
    assert ["run", "with", "less", "1", "mean", "50.0%", "bias", "-50.0%", "worst", "-50.0%"] in lines


def test_a_measurement_finds_the_function_with_its_layout() -> None:
    [entry] = [
        each
        for each in document()["measurements"]
        if (each["model"], each["accelerator"], each["precision"])
        == ("qwen3-235b-a22b", "gb200-nvl72", "mxfp8")
    ]
    found = planned.function_of(entry)
    assert found is not None
    assert found.function == "qwen3_235b_a22b_pretrain_256gpu_gb200_fp8mx_config"
    assert planned.function_of(entry | {"vp": 2}) is None
    assert planned.function_of(entry | {"with": ["flex", "partialGraphs", "epOverlap"]}) is None


def test_a_layout_is_asked_for_as_a_user_would() -> None:
    function = planned._library().function("llama3_8b_pretrain_8gpu_b200_fp8cs_config")
    assert function is not None
    run = planned.planned(function)
    assert run.plan.world_size == 8
    assert run.plan.expected is not None


def test_the_error_is_within_the_aim_where_everything_runs_as_published() -> None:
    """A mean of 10 % and a worst of 25 %, over all layouts that the release has as they were measured."""
    seen = list(planned.runs(planned.IMAGES["an image with DeepEP and HybridEP"]))
    assert len(seen) == 43
    assert not [each.function for each in seen if each.note]
    errors = [abs(each.error) for each in seen]
    assert sum(errors) / len(errors) < 0.1
    assert max(errors) < 0.25
