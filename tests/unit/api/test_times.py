"""Timestamps of the Kubernetes API."""

from megatron_operator.api.times import seconds, timestamp


def test_timestamps_round_trip() -> None:
    assert timestamp(1_800_000_000.9) == "2027-01-15T08:00:00Z"
    assert seconds("2027-01-15T08:00:00Z") == 1_800_000_000.0
    assert seconds("2027-01-15T09:00:00.5+01:00") == 1_800_000_000.5
    assert seconds(None) is None
