"""Durations of a recipe: as Kubernetes writes them, or in seconds."""

from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.recipe import RecoverySpec
from megatron_operator.api.validation import parse_spec

SPEC = {"recipe": "llama3-8b", "accelerator": {"count": 16}, "data": {"mockData": True}}


def recovery(**fields: Any) -> RecoverySpec:
    return parse_spec({**SPEC, "recovery": fields}).recovery


@pytest.mark.parametrize(
    ("written", "seconds"),
    [(600, 600), ("600s", 600), ("10m", 600), ("10m0s", 600), ("1h30m", 5400), ("90s", 90), ("0h2m", 120)],
)
def test_a_duration_is_a_number_of_seconds_or_a_text_with_units(written: Any, seconds: int) -> None:
    assert recovery(rendezvousTimeout=written).rendezvous_timeout == seconds
    elastic = recovery(elastic={"minCount": 8, "shrinkAfter": written, "growAfter": written}).elastic
    assert elastic is not None
    assert (elastic.shrink_after, elastic.grow_after) == (seconds, seconds)


@pytest.mark.parametrize(
    "written",
    ["10", "10 m", "1.5h", "1d", "-5m", "5ms", "", "m", "10m\n", "0s", "0h0m0s", "10s" * 7, "10m" * 7 + "x"],
)
def test_what_is_no_duration_is_refused_with_examples(written: str) -> None:
    with pytest.raises(InvalidRecipeError) as refused:
        recovery(rendezvousTimeout=written)
    [error] = refused.value.errors
    assert error.field == "spec.recovery.rendezvousTimeout"
    assert error.message.startswith("invalid duration ")
    assert error.fix == "use seconds, or for example 10m or 1h30m"


@pytest.mark.parametrize(("written", "fix"), [(0, "set at least 1"), ("30000h", "set at most 100000000")])
def test_a_duration_out_of_bounds_is_refused_in_seconds(written: Any, fix: str) -> None:
    with pytest.raises(InvalidRecipeError, match=fix):
        recovery(rendezvousTimeout=written)


@pytest.mark.parametrize("written", ["0s", "0m", "600", "never", "10s" * 7, "30000h"])
def test_the_limit_of_a_step_has_the_same_bounds(written: str) -> None:
    with pytest.raises(InvalidRecipeError, match=r"spec\.recovery\.hangTimeout"):
        recovery(hangTimeout=written)


def test_off_without_quotes_is_answered_with_quotes() -> None:
    with pytest.raises(
        InvalidRecipeError, match='write auto, "off" in quotes, without which YAML reads false'
    ):
        recovery(hangTimeout=False)


@pytest.mark.parametrize(
    ("written", "kept"),
    [("auto", "auto"), ("off", "off"), ("600s", "600s"), ("10m", "600s"), ("1h0m0s", "3600s")],
)
def test_the_limit_of_a_step_may_be_a_duration(written: str, kept: str) -> None:
    assert recovery(hangTimeout=written).hang_timeout == kept
