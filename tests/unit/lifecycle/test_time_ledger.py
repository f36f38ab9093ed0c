"""The division of a run's time by marks and incidents; every test adds up to the wall clock."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from megatron_operator.api.ledger_status import TimeLedger
from megatron_operator.api.recovery_status import Incident, LostSeconds
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.ledger_weeks import MAX_WEEKS
from megatron_operator.lifecycle.status_reading import read_status
from megatron_operator.lifecycle.time_ledger import (
    CATEGORIES,
    MAX_LOSSES,
    MAX_MARKS,
    USEFUL,
    State,
    account,
    advance,
    open_ledger,
    settle_old_incidents,
)

T0 = 1_800_000_000
PLANNING = State("prepare", "Planning")
SCHEDULE = State("schedule", "Unschedulable", None, 0)
TRAIN = State("train", accelerators=8)
START = State("start", "lost", "node-1", 8)


def incident(detected: float, kind: str = "pod", cause: str = "lost", **lost: float) -> Incident:
    return Incident(
        number=1,
        time=timestamp(T0 + detected),
        kind=kind,
        cause=cause,
        node="node-1",
        seconds=LostSeconds(**lost),
    )


def run(*states: tuple[float, State]) -> TimeLedger:
    ledger = open_ledger(timestamp(T0), PLANNING)
    for at, state in states:
        ledger = advance(ledger, state, T0 + at, [], ended=False)
    return ledger


def spent(ledger: TimeLedger, until: float, *incidents: Incident) -> dict[str, float]:
    return {k: v / 100 for k, v in account(ledger, incidents, T0 + until).ticks.items() if v}


def lost(ledger: TimeLedger, until: float, *incidents: Incident) -> dict[Any, float]:
    return {k: v / 100 for k, v in account(ledger, incidents, T0 + until).losses.items() if v}


def test_time_belongs_to_the_state_of_the_last_mark() -> None:
    ledger = run((10, SCHEDULE), (40, TRAIN))
    assert spent(ledger, 100) == {"prepare": 10, "schedule": 30, "train": 60}
    assert lost(ledger, 100) == {("prepare", "Planning", None): 10, ("schedule", "Unschedulable", None): 30}


def test_the_same_state_again_changes_nothing() -> None:
    ledger = run((10, TRAIN))
    assert advance(ledger, TRAIN, T0 + 99, [], ended=False) is ledger


def test_accelerators_count_only_while_they_are_held() -> None:
    held = account(run((10, SCHEDULE), (40, TRAIN)), [], T0 + 100).accelerator_ticks
    assert held == {"train": 60 * 8 * 100}


def test_accelerator_time_is_divided_at_the_beginning_of_a_week() -> None:
    """1,800,000,000 is a Friday, 08:00 UTC; Monday begins 230,400 s later."""
    monday = 230_400
    ledger = run((100, START), (200, TRAIN))
    ledger = advance(ledger, State("idle", "Succeeded"), T0 + monday + 50, [], ended=True)
    assert ledger.marks[0].time == timestamp(T0 + monday + 50)
    weeks = [
        (each.week, each.accelerator_seconds, each.lost_accelerator_seconds) for each in ledger.weeks or ()
    ]
    assert weeks == [("2027-01-11", 8 * (monday - 100.0), 800.0), ("2027-01-18", 400.0, 0.0)]


def test_the_newest_weeks_are_kept() -> None:
    ledger = run((0, TRAIN))
    until = T0 + 70 * 7 * 86_400
    ledger = advance(ledger, State("idle", "Succeeded"), until, [], ended=True)
    assert ledger.weeks is not None
    assert len(ledger.weeks) == MAX_WEEKS
    assert ledger.weeks[-1].week == "2028-05-15"


def test_a_run_that_held_no_accelerators_has_no_weeks() -> None:
    ledger = advance(run((0, TRAIN)), State("idle", "Failed"), T0, [], ended=True)
    assert "weeks" not in ledger.wire()


def test_an_incident_lies_over_the_states_that_the_operator_saw() -> None:
    # Last step at 100, detected at 130, first step at 148.25, caught up at 160.25.
    ledger = run((10, TRAIN), (131, START), (150, TRAIN))
    seen = incident(130, detect=30, schedule=5, start=6.25, load=7, redo=12)
    assert spent(ledger, 200, seen) == {
        "prepare": 10,
        "train": 90 + 200 - 160.25,
        "detect": 30,
        "schedule": 5,
        "start": 6.25,
        "load": 7,
        "redo": 12,
    }
    assert lost(ledger, 200, seen)[("redo", "lost", "node-1")] == 12


def test_an_incident_that_the_operator_recorded_late_lies_where_the_pods_saw_it() -> None:
    late = incident(500, detect=30, start=10, load=10).model_copy(
        update={"recovered_at": timestamp(T0 + 150)}
    )
    assert spent(run((10, TRAIN)), 130, late) == {"prepare": 10, "train": 90, "detect": 30}


def test_the_time_until_a_hang_is_detected_is_hang() -> None:
    assert spent(run((10, TRAIN)), 200, incident(130, "hang", detect=30)) == {
        "prepare": 10,
        "train": 160,
        "hang": 30,
    }


def test_so_is_that_until_the_operator_finds_one_and_restarts_the_gang() -> None:
    gang = incident(130, "gang", detect=30)
    ledger = run((10, TRAIN))
    assert spent(ledger, 200, gang) == {"prepare": 10, "train": 160, "detect": 30}, "its job ended early"
    hang = gang.model_copy(update={"hang": True})
    assert spent(ledger, 200, hang) == {"prepare": 10, "train": 160, "hang": 30}


def test_an_incident_before_recovery_from_another_begins_after_what_is_known_of_that() -> None:
    first = incident(130, cause="first", detect=30, start=10)
    second = incident(160, cause="second", detect=60)
    found = lost(run((10, TRAIN)), 200, first, second)
    assert found[("detect", "first", "node-1")] == 30
    assert found[("start", "first", "node-1")] == 10
    assert found[("detect", "second", "node-1")] == 20


def test_an_incident_does_not_lie_over_a_queue_or_a_suspended_run() -> None:
    ledger = run((10, TRAIN), (130, State("queue", "Queued")))
    assert spent(ledger, 200, incident(130, schedule=60, start=5)) == {
        "prepare": 10,
        "train": 120,
        "queue": 70,
    }


def test_training_is_divided_by_what_the_pods_report() -> None:
    ledger = run((10, TRAIN)).model_copy(update={"save_seconds": 30.5, "evaluate_seconds": 4.0})
    assert spent(ledger, 110) == {"prepare": 10, "save": 30.5, "evaluate": 4, "train": 65.5}
    found = account(ledger, [], T0 + 110).accelerator_ticks
    assert sum(found.values()) == 100 * 8 * 100
    assert found["save"] == 30.5 * 8 * 100


def test_reported_saves_longer_than_the_training_are_cut() -> None:
    ledger = run((10, TRAIN)).model_copy(update={"save_seconds": 1e9, "evaluate_seconds": 1e9})
    assert spent(ledger, 110) == {"prepare": 10, "save": 100}


def test_the_end_settles_everything() -> None:
    ledger = run((10, TRAIN))
    seen = [incident(60, detect=7.25)]
    ended = advance(ledger, State("idle", "Succeeded"), T0 + 100, seen, ended=True)
    assert ended.settled_at == timestamp(T0 + 100)
    assert ended.seconds == {"prepare": 10, "train": 82.75, "detect": 7.25}
    assert ended.accelerator_seconds == {"train": 662, "detect": 58}
    assert spent(ended, 100, *seen) == ended.seconds
    # An edit starts the run again.
    again = advance(ended, TRAIN, T0 + 150, seen, ended=False)
    assert spent(again, 200, *seen) == ended.seconds | {"idle": 50, "train": 132.75}


def test_a_clock_that_steps_back_loses_no_time() -> None:
    ledger = advance(run((50, TRAIN)), START, T0 + 20, [], ended=False)
    assert spent(ledger, 60) == {"prepare": 50, "start": 10}
    assert spent(ledger, 10) == {"prepare": 50}


def test_losses_beyond_the_limit_are_one_entry_for_each_category() -> None:
    ledger = open_ledger(timestamp(T0), PLANNING)
    for number in range(200):
        state = State("start", f"cause {number}") if number % 2 else State("load", f"cause {number}")
        ledger = advance(ledger, state, T0 + 10 + 10 * number + number**2, [], ended=False)
        assert len(ledger.losses) <= MAX_LOSSES
        assert len(ledger.marks) <= MAX_MARKS
    causes = {(each.category, each.cause) for each in ledger.losses}
    assert {("start", "other causes"), ("load", "other causes")} <= causes
    assert round(sum(each.seconds for each in ledger.losses), 2) == round(sum(ledger.seconds.values()), 2)


def test_what_another_release_wrote_adds_up_and_an_unreadable_part_costs_only_itself() -> None:
    written = run((10, TRAIN), (60, START)).wire() | {"settledAt": timestamp(T0 + 5), "ofANewerVersion": 1}
    written["seconds"] = {"defragment": 5.0}
    written["marks"] = [
        {"category": "a mark without a time"},
        {"time": timestamp(T0 + 20), "category": "defragment", "accelerators": 8},
        {"time": timestamp(T0 + 60), "category": "train", "accelerators": "many"},
    ]
    status, dropped = read_status({"phase": "Training", "ledger": written})
    assert status.ledger is not None
    assert status.phase == "Training"
    assert len(dropped) == 3
    assert sum(spent(status.ledger, 100).values()) == 100
    assert spent(status.ledger, 100)["defragment"] >= 45


STATES = st.builds(
    State,
    st.sampled_from(CATEGORIES),
    st.none() | st.sampled_from(["a", "b", "語" * 200]),
    st.none() | st.sampled_from(["node-1", "node-2"]),
    st.sampled_from([0, 8, 1024]),
)
PHASE = st.none() | st.integers(0, 20_000).map(lambda ticks: ticks / 100) | st.just(1e11)
INCIDENTS = st.builds(
    lambda kind, cause, detected, seconds: (kind, cause, detected, seconds),
    st.sampled_from(["pod", "hang", "gang"]),
    st.sampled_from(["x", "y"]),
    st.integers(-300, 300),
    st.builds(LostSeconds, detect=PHASE, schedule=PHASE, start=PHASE, load=PHASE, redo=PHASE),
)
STEPS = st.lists(
    st.tuples(
        st.integers(-30, 400),
        STATES,
        st.lists(INCIDENTS, max_size=3),
        st.booleans(),
        st.none() | st.floats(0, 1e11),
    ),
    max_size=90,
)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(STEPS)
def test_the_sum_is_the_wall_clock_under_any_sequence_of_states(steps: list[Any]) -> None:
    now = latest = T0
    ledger, history = open_ledger(timestamp(T0), PLANNING), []
    for after, state, incidents, ended, saved in steps:
        now += after
        latest = max(latest, now)
        for kind, cause, detected, phases in incidents:
            time = timestamp(now + detected)
            known = {"recovered_at": time} if detected % 2 else {}
            history.append(Incident(number=1, time=time, kind=kind, cause=cause, seconds=phases, **known))
        history = history[-20:]
        before = ledger.settled_at
        ledger = advance(ledger, state, now, history, ended=ended)
        ledger = settle_old_incidents(ledger, history, now)
        if saved is not None:
            ledger = ledger.model_copy(update={"save_seconds": saved})
        # What an operator that has just started reads.
        ledger = TimeLedger.model_validate(ledger.wire())
        found = account(ledger, history, latest)
        assert sum(found.ticks.values()) == (latest - T0) * 100
        assert min(found.ticks.values(), default=0) >= 0
        assert sum(found.losses.values()) == sum(
            ticks for name, ticks in found.ticks.items() if name not in ("train", "save", "evaluate")
        )
        assert sum(each.ticks for each in found.weeks.values()) == sum(found.accelerator_ticks.values())
        lost_in_weeks = sum(each.lost for each in found.weeks.values())
        assert lost_in_weeks == sum(t for n, t in found.accelerator_ticks.items() if n not in USEFUL)
        assert ledger.settled_at >= before
        assert len(ledger.marks) <= MAX_MARKS
        assert len(ledger.losses) <= MAX_LOSSES
