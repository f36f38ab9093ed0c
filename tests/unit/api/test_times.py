"""Timestamps of the Kubernetes API."""

import math

import pytest
from megatron_operator.api.times import seconds, timestamp


def test_timestamps_round_trip() -> None:
    assert timestamp(1_800_000_000.9) == "2027-01-15T08:00:00Z"
    assert seconds("2027-01-15T08:00:00Z") == 1_800_000_000.0
    assert seconds("2027-01-15T09:00:00.5+01:00") == 1_800_000_000.5
    assert seconds(None) is None


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (1e18, "9999-12-31T23:59:59Z"),
        (math.inf, "9999-12-31T23:59:59Z"),
        (-1.0, "1970-01-01T00:00:00Z"),
        (-math.inf, "1970-01-01T00:00:00Z"),
        (math.nan, "1970-01-01T00:00:00Z"),
    ],
)
def test_a_time_that_rfc3339_cannot_express_is_clamped(moment: float, text: str) -> None:
    assert timestamp(moment) == text


@pytest.mark.parametrize("text", ["", "soon", "2026-13-01T00:00:00Z", "99999-01-01T00:00:00Z"])
def test_a_text_that_is_no_time_is_none(text: str) -> None:
    assert seconds(text) is None


def test_a_time_without_a_zone_is_in_utc() -> None:
    assert seconds("2027-01-15T08:00:00") == 1_800_000_000.0
    assert seconds("0001-01-01T00:00:00") == -62135596800.0
