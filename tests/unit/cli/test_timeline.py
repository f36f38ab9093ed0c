"""The timeline of a run: in order of time, each interruption once."""

from typing import Any

import pytest
from megatron_operator.cli.timeline import TimelineEntry, elapsed, format_lost_time, incident_cost, timeline

INCIDENT: dict[str, Any] = {
    "number": 1,
    "time": "2026-01-01T11:00:00Z",
    "kind": "pod",
    "cause": "worker-0: out of memory",
    "pod": "worker-0",
    "node": "gpu-7",
    "rank": 9,
    "iteration": 123,
    "resumedFrom": 120,
    "lostIterations": 3,
    "seconds": {"detect": 0.4, "load": 75.0, "redo": None, "schedule": 2.0, "start": 9.6},
    "recoveredAt": "2026-01-01T11:01:27Z",
}


def event(time: str, reason: str, message: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {}, "lastTimestamp": time, "reason": reason, "message": message} | more


def condition(kind: str, status: str, reason: str, message: str, time: str) -> dict[str, Any]:
    fields = {"type": kind, "status": status, "reason": reason, "message": message}
    return fields | {"lastTransitionTime": time}


def recipe(*conditions: dict[str, Any], history: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {
        "metadata": {"creationTimestamp": "2026-01-01T10:00:00Z"},
        "status": {"conditions": list(conditions), "recovery": {"history": history or []}},
    }


def reasons(entries: list[TimelineEntry]) -> list[str]:
    return [entry.reason for entry in entries]


def test_entries_are_in_order_of_time() -> None:
    entries = timeline(
        recipe(
            condition("Succeeded", "True", "Succeeded", "the run is done", "2026-01-01T12:00:00Z"),
            condition("Planned", "True", "Planned", "TP 1 x DP 2", "2026-01-01T10:00:01Z"),
            history=[INCIDENT],
        ),
        [event("2026-01-01T11:30:00.123456Z", "CheckpointVolumeLow", "3 GiB are left", type="Warning")],
    )
    assert reasons(entries) == ["Created", "Planned", "PodsReplaced", "CheckpointVolumeLow", "Succeeded"]
    assert [entry.warning for entry in entries] == [False, False, True, True, False]


def test_an_event_that_repeats_an_incident_is_left_out() -> None:
    repeated = event("2026-01-01T11:00:03Z", "PodsReplaced", "worker-0: out of memory; 1 of 10 restarts")
    later = event("2026-01-01T11:20:00Z", "PodsReplaced", "worker-0: out of memory; 2 of 10 restarts")
    entries = timeline(recipe(history=[INCIDENT]), [repeated, later])
    assert [entry.source for entry in entries] == ["recipe", "incident", "event"]


def test_a_condition_that_repeats_an_incident_is_left_out_and_later_ones_are_kept() -> None:
    cause = INCIDENT["cause"]
    conditions = (
        condition("Recovering", "True", "PodsReplaced", cause, "2026-01-01T11:00:01Z"),
        condition("Failed", "True", "RestartsSpent", cause, "2026-01-01T11:00:02Z"),
    )
    assert reasons(timeline(recipe(*conditions, history=[INCIDENT]), [])) == [
        "Created",
        "PodsReplaced",
        "RestartsSpent",
    ]


def test_a_resize_keeps_its_event_which_has_the_new_count() -> None:
    resize = INCIDENT | {"kind": "resize", "cause": "8 accelerators are gone", "pod": None}
    conditions = (
        condition("Recovering", "True", "Shrunk", "8 accelerators are gone", "2026-01-01T11:00:00Z"),
        condition("Running", "False", "Shrunk", "8 accelerators are gone", "2026-01-01T11:00:00Z"),
    )
    shrunk = event("2026-01-01T11:00:00Z", "Shrunk", "resized to 8 accelerators: 8 accelerators are gone")
    entries = timeline(recipe(*conditions, history=[resize]), [shrunk])
    assert reasons(entries) == ["Created", "Resized", "Shrunk"]


def test_a_condition_that_repeats_an_event_is_left_out() -> None:
    failed = condition("Failed", "True", "BadData", "no dataset", "2026-01-01T11:00:00Z")
    entries = timeline(recipe(failed), [event("2026-01-01T11:00:00Z", "BadData", "no dataset")])
    assert reasons(entries) == ["Created", "BadData"]


def test_a_repeated_event_is_one_entry_with_its_count() -> None:
    [_, again] = timeline(recipe(), [event("2026-01-01T11:00:00Z", "Queued", "waits", count=4)])
    assert again.count == 4


def test_an_event_without_count_uses_its_event_time() -> None:
    newer = {
        "metadata": {}, "eventTime": "2026-01-01T10:30:00.000000Z", "lastTimestamp": None,
        "reason": "Seen", "message": "", "series": None, "count": None,
    }  # fmt: skip
    [_, entry] = timeline(recipe(), [newer])
    assert (entry.time, entry.count) == ("2026-01-01T10:30:00.000000Z", 1)


def test_the_cost_of_an_incident_has_its_place_and_duration() -> None:
    assert incident_cost(INCIDENT) == (
        "worker-0 rank 9 on gpu-7; resumed from iteration 120, 3 iterations repeated; "
        "lost 1m27s (detect 0.4 s, schedule 2.0 s, start 9.6 s, load 1m15s)"
    )


def test_an_open_incident_is_reported_as_such() -> None:
    open_one = {"kind": "gang", "time": INCIDENT["time"], "cause": "hang", "seconds": {}, "recoveredAt": None}
    assert incident_cost(open_one) == "not training again yet"


@pytest.mark.parametrize(
    ("time", "text"),
    [
        ("2026-01-01T10:00:04Z", "4.0 s"),
        ("2026-01-01T10:03:05Z", "3m05s"),
        ("2026-01-01T12:04:00Z", "2h04m"),
        ("2026-01-04T12:00:00Z", "3d02h"),
    ],
)
def test_elapsed_time_has_a_unit_of_its_size(time: str, text: str) -> None:
    first = TimelineEntry("2026-01-01T10:00:00Z", "recipe", "Created", "")
    assert elapsed(TimelineEntry(time, "event", "x", ""), first) == text


def test_lost_time_is_a_sum_and_its_phases() -> None:
    assert format_lost_time({"detect": 1.0, "load": 60.0, "redo": None}) == "1m01s (detect 1.0 s, load 1m00s)"
    assert format_lost_time({}) == "none"


def test_a_slow_rank_is_an_entry_and_its_event_is_left_out() -> None:
    slow = {
        "rank": 9, "pod": "worker-1", "node": "gpu-7", "iteration": 40, "slowdown": 1.84,
        "ownSeconds": 0.92, "peerSeconds": 0.5, "since": "2026-01-01T11:00:00Z", "aFieldOfALaterVersion": 1,
    }  # fmt: skip
    found = recipe()
    found["status"]["stragglers"] = [
        slow,
        slow | {"until": "2026-01-01T11:30:00Z"},
    ]
    entries = timeline(found, [event("2026-01-01T11:00:01Z", "SlowRank", "rank 9", type="Warning")])
    assert reasons(entries) == ["Created", "SlowRank", "SlowRank"]
    text = "rank 9 (worker-1 on gpu-7): 1.84 times as long as the peers for the own work"
    assert all(entry.message.startswith(text) for entry in entries[1:])
    ends = [entry.message.rpartition("; ")[2] for entry in entries[1:]]
    assert ends == ["still slow", "until 2026-01-01 11:30:00"]
