"""The attempts of a run, from its incidents."""

from megatron_operator.api.recovery_status import Incident
from megatron_operator.sdk.readings import attempts

CREATED = "2026-01-01T10:00:00Z"


def incident(number: int, recovered: str | None, iteration: int = 10, resumed: int = 5) -> Incident:
    return Incident(
        number=number, time=f"t{number}", kind="rank", cause=f"cause {number}", iteration=iteration,
        resumed_from=resumed, recovered_at=recovered,
    )  # fmt: skip


def test_a_run_without_incidents_is_one_attempt() -> None:
    [only] = attempts(CREATED, ())
    assert (only.number, only.since, only.until, only.incident) == (1, CREATED, None, None)


def test_incidents_before_the_run_trains_again_end_one_attempt() -> None:
    found = attempts(CREATED, (incident(1, "r2", 30), incident(2, "r2", 30), incident(3, "r3", 50, 45)))
    assert [(a.number, a.since, a.until, a.iteration, a.resumed_from) for a in found] == [
        (1, CREATED, "t1", 30, None),
        (2, "r2", "t3", 50, 5),
        (3, "r3", None, None, 45),
    ]


def test_the_newest_attempt_has_not_begun_while_the_run_recovers() -> None:
    *_, newest = attempts(CREATED, (incident(1, None),))
    assert (newest.number, newest.since, newest.resumed_from) == (2, None, 5)


def test_a_history_that_was_cut_begins_with_an_attempt_of_unknown_begin() -> None:
    first, second = attempts(CREATED, (incident(7, "r7"),))
    assert (first.number, first.since, second.number) == (7, None, 8)
