"""The decision, case by case."""

from dataclasses import replace

import pytest
from megatron_operator.recovery import (
    Fail,
    Heartbeat,
    History,
    Limits,
    Observation,
    PodPhase,
    PodView,
    RestartGang,
    Wait,
    decide,
)

NOW = 10_000.0
LIMITS = Limits.parse(max_restarts=3, rendezvous_timeout=600, hang_timeout="auto")
TRAINING = Heartbeat("training", iteration=60, step_seconds=1.0, answered=NOW - 1, moved=NOW - 1)
HISTORY = History("run")


def pods(
    *phases: PodPhase, started: float | None = NOW - 5000, deleting: bool = False
) -> tuple[PodView, ...]:
    return tuple(PodView(rank, phase, started, deleting) for rank, phase in enumerate(phases))


HEALTHY = Observation(NOW, 2, pods(PodPhase.RUNNING, PodPhase.RUNNING), TRAINING, HISTORY, LIMITS)
SILENT = replace(TRAINING, moved=NOW - 121)
HANGING = replace(HEALTHY, heartbeat=SILENT)


@pytest.mark.parametrize(
    ("case", "observation"),
    [
        ("training goes on", HEALTHY),
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
            "none answered since the youngest pod began",
            replace(HANGING, pods=pods(PodPhase.RUNNING, PodPhase.RUNNING, started=NOW)),
        ),
        (
            "hangs are not looked for",
            replace(HANGING, limits=Limits.parse(3, 600, "off"), heartbeat=replace(SILENT, moved=NOW - 4000)),
        ),
        ("a checkpoint is being saved", replace(HANGING, heartbeat=replace(SILENT, phase="saving"))),
        (
            "pods are gathering",
            replace(HANGING, heartbeat=replace(SILENT, phase="rendezvous", moved=NOW - 599)),
        ),
        ("the run has finished", replace(HANGING, heartbeat=replace(SILENT, phase="finished"))),
        ("no pod is there", replace(HEALTHY, pods=())),
    ],
)
def test_waits_while(case: str, observation: Observation) -> None:
    assert isinstance(decide(observation), Wait), case


@pytest.mark.parametrize(
    ("observation", "cause"),
    [
        (HANGING, "no new iteration for 121 s after iteration 60 (hangTimeout 120 s)"),
        (
            replace(HANGING, heartbeat=replace(SILENT, step_seconds=10.0, moved=NOW - 301)),
            "no new iteration for 301 s after iteration 60 (hangTimeout 300 s)",
        ),
        (
            replace(HANGING, limits=Limits.parse(3, 600, "30s"), heartbeat=replace(SILENT, moved=NOW - 31)),
            "no new iteration for 31 s after iteration 60 (hangTimeout 30 s)",
        ),
        (
            replace(HANGING, heartbeat=replace(SILENT, phase="saving", moved=NOW - 1801)),
            "no new iteration for 1801 s after iteration 60 (hangTimeout 1800 s)",
        ),
        (
            replace(HANGING, heartbeat=replace(SILENT, phase="rendezvous", moved=NOW - 601)),
            "pods did not come together within 600 s (rendezvousTimeout)",
        ),
    ],
    ids=["silence", "slow steps", "own limit", "a save that does not end", "no rendezvous"],
)
def test_starts_the_gang_anew_for(observation: Observation, cause: str) -> None:
    assert decide(observation) == RestartGang(cause)


def test_a_spent_budget_fails_with_the_last_cause() -> None:
    history = History("run", restarts_since_checkpoint=4, last_cause="worker-0: out of memory")
    assert decide(replace(HEALTHY, history=history)) == Fail(
        "4 restarts brought no new checkpoint and recovery.maxRestarts is 3; "
        "first cause: worker-0: out of memory"
    )


def test_the_last_restart_of_the_budget_is_not_exceeded_by_a_hang() -> None:
    decision = decide(replace(HANGING, history=History("run", restarts_since_checkpoint=3)))
    assert isinstance(decision, Fail)
    assert "no new iteration" in decision.cause


def test_backs_off_before_a_further_restart_and_says_how_long() -> None:
    recent = History("run", restarts_since_checkpoint=2, last_restart=NOW - 1)
    decision = decide(replace(HANGING, history=recent))
    assert isinstance(decision, Wait)
    assert decision.seconds is not None
    assert 14 - 1 <= decision.seconds <= 25
    later = replace(HANGING, history=replace(recent, last_restart=NOW - 26))
    assert isinstance(decide(later), RestartGang)
