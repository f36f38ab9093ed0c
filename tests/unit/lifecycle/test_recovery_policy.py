"""The recovery policy, case by case."""

from dataclasses import replace

import pytest
from megatron_operator.api.recipe import RecoverySpec
from megatron_operator.lifecycle.observation import (
    Elastic,
    ElasticCapacity,
    History,
    Limits,
    Observation,
    PodPhase,
)
from megatron_operator.lifecycle.recovery_policy import (
    ChangeDomain,
    Fail,
    Resize,
    RestartGang,
    Wait,
    decide,
)

from tests.unit.lifecycle.observations import (
    HANGING,
    HEALTHY,
    HISTORY,
    LIMITS,
    NOW,
    STALLED,
    TRAINING,
    on_nodes,
    pods,
    waiting,
)


@pytest.mark.parametrize(
    ("case", "observation"),
    [
        ("the run trains", HEALTHY),
        ("the job has ended", replace(HANGING, ended=True)),
        ("a pod is missing", replace(HANGING, pods=HEALTHY.pods[:1])),
        ("a pod is pending", replace(HANGING, pods=pods(PodPhase.RUNNING, PodPhase.PENDING))),
        ("a pod failed and will be replaced", replace(HANGING, pods=pods(PodPhase.RUNNING, PodPhase.FAILED))),
        (
            "a pod is being deleted",
            replace(HANGING, pods=pods(PodPhase.RUNNING, PodPhase.RUNNING, deleting=True)),
        ),
        (
            "pods are being deleted and the budget is spent",
            replace(
                HEALTHY,
                pods=pods(PodPhase.RUNNING, deleting=True),
                history=History("run", restarts_since_checkpoint=9),
            ),
        ),
        ("no pod ever answered", replace(HANGING, heartbeat=None)),
        (
            "none answered since the youngest pod started",
            replace(HANGING, pods=pods(PodPhase.RUNNING, PodPhase.RUNNING, started=NOW)),
        ),
        (
            "hangs are not detected",
            replace(
                HANGING, limits=Limits.parse(3, 600, "off"), heartbeat=replace(STALLED, moved=NOW - 4000)
            ),
        ),
        ("a checkpoint is being saved", replace(HANGING, heartbeat=replace(STALLED, phase="saving"))),
        (
            "pods are at the rendezvous",
            replace(HANGING, heartbeat=replace(STALLED, phase="rendezvous", moved=NOW - 599)),
        ),
        ("the run has finished", replace(HANGING, heartbeat=replace(STALLED, phase="finished"))),
        ("there is no pod", replace(HEALTHY, pods=())),
    ],
)
def test_waits_while(case: str, observation: Observation) -> None:
    assert isinstance(decide(observation), Wait), case


@pytest.mark.parametrize(
    ("observation", "cause", "hang"),
    [
        (
            HANGING,
            "no new iteration for 121 s after iteration 60; hangTimeout auto allows 108 s",
            True,
        ),
        (
            replace(HANGING, heartbeat=replace(STALLED, step_seconds=10.0, moved=NOW - 301)),
            "no new iteration for 301 s after iteration 60; hangTimeout auto allows 300 s",
            True,
        ),
        (
            replace(HANGING, limits=Limits.parse(3, 600, "30s"), heartbeat=replace(STALLED, moved=NOW - 61)),
            "no new iteration for 61 s after iteration 60; hangTimeout 30s allows 60 s",
            True,
        ),
        (
            replace(HANGING, heartbeat=replace(STALLED, phase="saving", moved=NOW - 1831)),
            "no new iteration for 1831 s after iteration 60; hangTimeout auto allows 1830 s",
            True,
        ),
        (
            replace(HANGING, heartbeat=replace(STALLED, phase="rendezvous", moved=NOW - 601)),
            "pods did not complete the rendezvous within 600 s (rendezvousTimeout)",
            False,
        ),
    ],
    ids=["no iteration", "slow steps", "explicit limit", "endless save", "no rendezvous"],
)
def test_restarts_the_gang_when(observation: Observation, cause: str, hang: bool) -> None:
    assert decide(observation) == RestartGang(cause, hang)


@pytest.mark.parametrize("phase", ["loading", "saving"])
def test_a_stated_limit_of_a_step_does_not_shorten_loading_or_saving(phase: str) -> None:
    """The trainer gives them half an hour whatever `hangTimeout` is."""
    slow = replace(STALLED, phase=phase, moved=NOW - 900)
    limits = Limits.parse(3, 600, "600s")
    assert isinstance(decide(replace(HANGING, heartbeat=slow, limits=limits)), Wait)


def test_a_run_without_budget_fails_with_the_last_cause() -> None:
    history = History("run", restarts_since_checkpoint=4, last_cause="worker-0: out of memory")
    assert decide(replace(HEALTHY, history=history)) == Fail(
        "4 restarts brought no new checkpoint and recovery.maxRestarts is 3; "
        "first cause: worker-0: out of memory"
    )


def test_a_hang_does_not_exceed_the_budget() -> None:
    decision = decide(replace(HANGING, history=History("run", restarts_since_checkpoint=3)))
    assert isinstance(decision, Fail)
    assert "no new iteration" in decision.cause


def test_backs_off_before_a_further_restart_for_a_stated_time() -> None:
    recent = History("run", restarts_since_checkpoint=2, last_restart=NOW - 1)
    decision = decide(replace(HANGING, history=recent))
    assert isinstance(decision, Wait)
    assert decision.seconds is not None
    assert 14 - 1 <= decision.seconds <= 25
    later = replace(HANGING, history=replace(recent, last_restart=NOW - 26))
    assert isinstance(decide(later), RestartGang)


ELASTIC = replace(LIMITS, elastic=Elastic(min_count=8, shrink_after=600, grow_after=300))


def test_an_elastic_run_shrinks_to_the_available_accelerators() -> None:
    short = waiting(600, limits=ELASTIC, capacity=ElasticCapacity(requested=16, count=16, fits=8))
    assert decide(short) == Resize(8, "only 8 of 16 accelerators have been available for 600 s")


def test_a_run_whose_domain_lacks_room_moves_to_another_after_a_while_and_does_not_shrink() -> None:
    short = ElasticCapacity(requested=16, count=16, fits=8)
    soon = waiting(119, limits=ELASTIC, capacity=short, in_another_domain=True, releasable=frozenset({"bad"}))
    decision = decide(soon)
    assert isinstance(decision, Wait)
    assert decision.seconds == 1
    assert decide(replace(soon, waiting_since=NOW - 120)) == ChangeDomain(
        "no topology domain that its pods can use has had room for all 2 for 120 s, and another has"
    )


@pytest.mark.parametrize(
    ("seen", "again"),
    [
        (waiting(500, limits=ELASTIC, capacity=ElasticCapacity(16, 16, 8)), 100.0),
        (waiting(900, limits=ELASTIC, capacity=ElasticCapacity(16, 16, None)), None),
        (waiting(900, limits=ELASTIC, capacity=ElasticCapacity(16, 16, 16)), None),
        (waiting(900, limits=ELASTIC), None),
        (waiting(900, capacity=ElasticCapacity(16, 16, 8)), None),
        (
            waiting(
                900,
                limits=ELASTIC,
                capacity=ElasticCapacity(16, 16, 8),
                history=History("run", last_resize=NOW - 200),
            ),
            100.0,
        ),
    ],
    ids=["not long enough", "too few", "enough", "unknown", "not elastic", "resized recently"],
)
def test_a_run_waits_for_its_accelerators_while(seen: Observation, again: float | None) -> None:
    decision = decide(seen)
    assert isinstance(decision, Wait)
    assert decision.seconds == (None if again is None else pytest.approx(again))


FREE = ElasticCapacity(requested=32, count=16, fits=32, larger=24, larger_since=NOW - 300)
GROWING = replace(HEALTHY, limits=ELASTIC, capacity=FREE)


def test_a_run_grows_to_a_count_that_has_been_free_for_long_enough() -> None:
    assert decide(GROWING) == Resize(24, "24 of 32 accelerators have been free for 300 s")


@pytest.mark.parametrize(
    "seen",
    [
        replace(GROWING, capacity=replace(FREE, larger_since=NOW - 299)),
        replace(GROWING, capacity=replace(FREE, fits=16)),
        replace(GROWING, capacity=replace(FREE, larger=None)),
        replace(GROWING, history=History("run", last_resize=NOW - 299)),
        replace(GROWING, history=History("run", last_restart=NOW - 299)),
        replace(GROWING, heartbeat=replace(TRAINING, phase="saving")),
        replace(GROWING, heartbeat=replace(TRAINING, answered=NOW - 61)),
        replace(GROWING, pods=on_nodes({}, {"started": NOW - 0.5})),
        replace(GROWING, limits=LIMITS),
    ],
    ids=[
        "not long enough",
        "no longer free",
        "nothing is free",
        "resized recently",
        "restarted recently",
        "a checkpoint is being saved",
        "no pod answers",
        "just started",
        "not elastic",
    ],
)
def test_a_run_does_not_grow_while(seen: Observation) -> None:
    assert isinstance(decide(seen), Wait)


def test_a_forward_jump_of_the_clock_is_no_hang() -> None:
    jumped = replace(TRAINING, moved=NOW - 3600, unmoved=2.0)
    assert isinstance(decide(replace(HEALTHY, heartbeat=jumped)), Wait)
    hangs = replace(jumped, unmoved=121.0)
    assert isinstance(decide(replace(HEALTHY, heartbeat=hangs)), RestartGang)


def test_pods_that_do_not_answer_hang_only_after_half_an_hour() -> None:
    quiet = replace(TRAINING, answered=NOW - 1830, moved=NOW - 1830)
    assert isinstance(decide(replace(HEALTHY, heartbeat=quiet)), Wait)
    longer = replace(quiet, answered=NOW - 1831)
    assert decide(replace(HEALTHY, heartbeat=longer)) == RestartGang(
        "no pod has answered for 1831 s", hang=True
    )
    off = Limits.parse(3, 600, "off")
    assert isinstance(decide(replace(HEALTHY, heartbeat=longer, limits=off)), Wait)


def test_the_first_and_the_last_cause_are_named() -> None:
    history = History("run", 4, last_cause="worker-2: lost its peers", first_cause="worker-0: out of memory")
    decision = decide(replace(HEALTHY, history=history))
    assert isinstance(decision, Fail)
    assert decision.cause.endswith(
        "first cause: worker-0: out of memory; last cause: worker-2: lost its peers"
    )


def test_the_limits_come_from_the_recipe() -> None:
    spec = RecoverySpec.model_validate(
        {"maxRestarts": 4, "hangTimeout": "90s", "nodes": {"avoidAfter": 3}, "elastic": {"minCount": 8}}
    )
    assert Limits.of(spec) == Limits(4, 600.0, 90.0, False, 3, Elastic(8, 600.0, 300.0))
    assert Limits.of(RecoverySpec()).avoid_after == 2


EXITED = "master-0: ended with exit code 0 before the last iteration"


def test_a_job_that_ended_early_is_restarted() -> None:
    assert decide(replace(HEALTHY, ended=True, early_exit=EXITED)) == RestartGang(EXITED)


def test_a_job_that_repeatedly_ends_early_fails() -> None:
    spent = replace(HISTORY, restarts_since_checkpoint=3)
    decision = decide(replace(HEALTHY, ended=True, early_exit=EXITED, history=spent))
    assert isinstance(decision, Fail)
    assert EXITED in decision.cause
