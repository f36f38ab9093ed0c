"""What happened to a run, in order and told once."""

from typing import Any

import pytest
from megatron_operator.cli.timeline import Moment, after, cost, lost, timeline

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
    said = {"type": kind, "status": status, "reason": reason, "message": message}
    return said | {"lastTransitionTime": time}


def recipe(*conditions: dict[str, Any], history: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {
        "metadata": {"creationTimestamp": "2026-01-01T10:00:00Z"},
        "status": {"conditions": list(conditions), "recovery": {"history": history or []}},
    }


def reasons(moments: list[Moment]) -> list[str]:
    return [moment.reason for moment in moments]


def test_everything_is_in_the_order_of_its_time() -> None:
    moments = timeline(
        recipe(
            condition("Succeeded", "True", "Succeeded", "the run is done", "2026-01-01T12:00:00Z"),
            condition("Planned", "True", "Planned", "TP 1 x DP 2", "2026-01-01T10:00:01Z"),
            history=[INCIDENT],
        ),
        [event("2026-01-01T11:30:00.123456Z", "CheckpointVolumeLow", "3 GiB are left", type="Warning")],
    )
    assert reasons(moments) == ["Created", "Planned", "PodsReplaced", "CheckpointVolumeLow", "Succeeded"]
    assert [moment.warning for moment in moments] == [False, False, True, True, False]


def test_an_event_that_tells_an_incident_is_not_told_twice() -> None:
    told = event("2026-01-01T11:00:03Z", "PodsReplaced", "worker-0: out of memory; 1 of 10 restarts")
    later = event("2026-01-01T11:20:00Z", "PodsReplaced", "worker-0: out of memory; 2 of 10 restarts")
    moments = timeline(recipe(history=[INCIDENT]), [told, later])
    assert [moment.source for moment in moments] == ["recipe", "incident", "event"]


def test_the_condition_of_an_incident_is_not_told_twice_but_what_followed_is() -> None:
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


def test_a_resize_is_told_by_its_incident_and_its_event_which_says_to_how_many() -> None:
    resize = INCIDENT | {"kind": "resize", "cause": "8 accelerators are gone", "pod": None}
    conditions = (
        condition("Recovering", "True", "Shrunk", "8 accelerators are gone", "2026-01-01T11:00:00Z"),
        condition("Running", "False", "Shrunk", "8 accelerators are gone", "2026-01-01T11:00:00Z"),
    )
    shrunk = event("2026-01-01T11:00:00Z", "Shrunk", "laid out on 8 accelerators: 8 accelerators are gone")
    moments = timeline(recipe(*conditions, history=[resize]), [shrunk])
    assert reasons(moments) == ["Created", "Resized", "Shrunk"]


def test_a_condition_that_an_event_tells_is_not_told_twice() -> None:
    failed = condition("Failed", "True", "BadData", "no dataset", "2026-01-01T11:00:00Z")
    moments = timeline(recipe(failed), [event("2026-01-01T11:00:00Z", "BadData", "no dataset")])
    assert reasons(moments) == ["Created", "BadData"]


def test_an_event_that_came_again_is_one_with_its_count() -> None:
    [_, again] = timeline(recipe(), [event("2026-01-01T11:00:00Z", "Queued", "waits", count=4)])
    assert again.count == 4


def test_an_event_without_a_count_by_the_newer_interface_has_its_time() -> None:
    newer = {
        "metadata": {}, "eventTime": "2026-01-01T10:30:00.000000Z", "lastTimestamp": None,
        "reason": "Seen", "message": "", "series": None, "count": None,
    }  # fmt: skip
    [_, moment] = timeline(recipe(), [newer])
    assert (moment.time, moment.count) == ("2026-01-01T10:30:00.000000Z", 1)


def test_an_incidents_cost_says_where_what_and_how_long() -> None:
    assert cost(INCIDENT) == (
        "worker-0 rank 9 on gpu-7; resumed from iteration 120, 3 iterations again; "
        "lost 1m27s (detect 0.4 s, schedule 2.0 s, start 9.6 s, load 1m15s)"
    )


def test_an_incident_that_is_not_over_says_so() -> None:
    open_one = {"kind": "gang", "time": INCIDENT["time"], "cause": "hang", "seconds": {}, "recoveredAt": None}
    assert cost(open_one) == "not training again yet"


@pytest.mark.parametrize(
    ("time", "said"),
    [
        ("2026-01-01T10:00:04Z", "4.0 s"),
        ("2026-01-01T10:03:05Z", "3m05s"),
        ("2026-01-01T12:04:00Z", "2h04m"),
        ("2026-01-04T12:00:00Z", "3d02h"),
    ],
)
def test_times_since_the_start_are_told_as_long_as_they_are(time: str, said: str) -> None:
    first = Moment("2026-01-01T10:00:00Z", "recipe", "Created", "")
    assert after(Moment(time, "event", "x", ""), first) == said


def test_lost_time_is_summed_and_told_by_phase() -> None:
    assert lost({"detect": 1.0, "load": 60.0, "redo": None}) == "1m01s (detect 1.0 s, load 1m00s)"
    assert lost({}) == "none"
