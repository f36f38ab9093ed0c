"""Times as the API writes them."""

from megatron_operator.api.times import seconds, timestamp


def test_times_are_written_as_the_api_server_does_and_read_back() -> None:
    assert timestamp(1_800_000_000.9) == "2027-01-15T08:00:00Z"
    assert seconds("2027-01-15T08:00:00Z") == 1_800_000_000.0
    assert seconds("2027-01-15T09:00:00.5+01:00") == 1_800_000_000.5
    assert seconds(None) is None
