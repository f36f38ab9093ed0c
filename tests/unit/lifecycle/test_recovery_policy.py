"""The recovery policy, case by case."""

from dataclasses import replace
from typing import Any

import pytest
from megatron_operator.api.recipe import RecoverySpec
from megatron_operator.lifecycle.observation import (
    AvoidanceLimits,
    Elastic,
    ElasticCapacity,
    Heartbeat,
    History,
    Limits,
    Observation,
    PodPhase,
    PodView,
)
from megatron_operator.lifecycle.recovery_policy import (
    Avoid,
    Fail,
    ForceDelete,
    ReleaseNodes,
    Resize,
    RestartGang,
    Wait,
    decide,
    force_delete_or_wait,
)
from megatron_operator.lifecycle.status_size import MAX_NODES

NOW = 10_000.0
LIMITS = Limits.parse(max_restarts=3, rendezvous_timeout=600, hang_timeout="auto")
TRAINING = Heartbeat("training", iteration=60, step_seconds=1.0, answered=NOW - 1, moved=NOW - 1)
HISTORY = History("run")


def pods(
    *phases: PodPhase, started: float | None = NOW - 5000, deleting: bool = False
) -> tuple[PodView, ...]:
    return tuple(PodView(rank, phase, started, deleting) for rank, phase in enumerate(phases))


HEALTHY = Observation(NOW, 2, pods(PodPhase.RUNNING, PodPhase.RUNNING), TRAINING, HISTORY, LIMITS)
STALLED = replace(TRAINING, moved=NOW - 121)
HANGING = replace(HEALTHY, heartbeat=STALLED)


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
    ("observation", "cause"),
    [
        (HANGING, "no new iteration for 121 s after iteration 60; hangTimeout auto allows 108 s"),
        (
            replace(HANGING, heartbeat=replace(STALLED, step_seconds=10.0, moved=NOW - 301)),
            "no new iteration for 301 s after iteration 60; hangTimeout auto allows 300 s",
        ),
        (
            replace(HANGING, limits=Limits.parse(3, 600, "30s"), heartbeat=replace(STALLED, moved=NOW - 61)),
            "no new iteration for 61 s after iteration 60; hangTimeout 30s allows 60 s",
        ),
        (
            replace(HANGING, heartbeat=replace(STALLED, phase="saving", moved=NOW - 1831)),
            "no new iteration for 1831 s after iteration 60; hangTimeout auto allows 1830 s",
        ),
        (
            replace(HANGING, heartbeat=replace(STALLED, phase="rendezvous", moved=NOW - 601)),
            "pods did not complete the rendezvous within 600 s (rendezvousTimeout)",
        ),
    ],
    ids=["no iteration", "slow steps", "explicit limit", "endless save", "no rendezvous"],
)
def test_restarts_the_gang_when(observation: Observation, cause: str) -> None:
    assert decide(observation) == RestartGang(cause)


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


def on_nodes(*changes: dict[str, Any]) -> tuple[PodView, ...]:
    """A running gang with a node for each pod, with changes to each."""
    whole = (
        PodView(rank, PodPhase.RUNNING, NOW - 5000, name=f"run-{rank}", node=f"node-{rank}")
        for rank in range(len(changes))
    )
    return tuple(replace(pod, **change) for pod, change in zip(whole, changes, strict=True))


UNREACHABLE = {"unreachable_since": NOW - 31}
RECENTLY_UNREACHABLE = {"unreachable_since": NOW - 29}


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        (on_nodes({}, UNREACHABLE), ("run-1",)),
        (on_nodes({}, UNREACHABLE | {"deleting": True}), ("run-1",)),
        (on_nodes({}, RECENTLY_UNREACHABLE | {"deleting": True, "overdue": True}), ("run-1",)),
        (on_nodes(UNREACHABLE, UNREACHABLE, RECENTLY_UNREACHABLE), ("run-0", "run-1")),
        # While pods are being deleted, only those may be force-deleted.
        (on_nodes({"deleting": True}, UNREACHABLE | {"deleting": True}, UNREACHABLE), ("run-1",)),
    ],
)
def test_pods_of_a_lost_node_are_force_deleted(pods: tuple[PodView, ...], expected: tuple[str, ...]) -> None:
    decision = decide(replace(HEALTHY, size=len(pods), pods=pods))
    assert isinstance(decision, ForceDelete)
    assert decision.pods == expected
    assert "unreachable" in decision.cause


@pytest.mark.parametrize(
    "pods",
    [
        on_nodes({}, RECENTLY_UNREACHABLE),
        on_nodes({}, RECENTLY_UNREACHABLE | {"deleting": True}),
        on_nodes({}, {"deleting": True, "overdue": True}),
    ],
    ids=["may return", "may return and end it", "its kubelet is reachable and slow"],
)
def test_pods_are_not_force_deleted_while_a_kubelet_may_end_them(pods: tuple[PodView, ...]) -> None:
    decision = decide(replace(HEALTHY, size=len(pods), pods=pods))
    assert isinstance(decision, Wait)


def test_an_unreachable_node_is_checked_again_when_the_patience_ends() -> None:
    decision = decide(replace(HEALTHY, pods=on_nodes({}, RECENTLY_UNREACHABLE)))
    assert isinstance(decision, Wait)
    assert decision.seconds == pytest.approx(1.0)


def test_pods_of_a_deleted_job_on_a_lost_node_are_force_deleted() -> None:
    assert isinstance(force_delete_or_wait(on_nodes(UNREACHABLE | {"deleting": True}), NOW), ForceDelete)
    assert isinstance(force_delete_or_wait(on_nodes({"deleting": True}), NOW), Wait)


AVOIDING = replace(LIMITS, avoid_after=2)
FAILING = History("run", node_failures={"node-1": 2, "node-0": 1})
MANY = frozenset(f"node-{number}" for number in range(100, 100 + MAX_NODES))
RESTARTING = replace(HEALTHY, pods=on_nodes({}, {}), limits=AVOIDING, history=FAILING)


def test_a_node_that_failed_too_often_is_avoided_and_its_pod_moves_while_nothing_trains() -> None:
    starting = replace(TRAINING, phase="rendezvous")
    decision = decide(replace(RESTARTING, heartbeat=starting))
    assert decision == Avoid(("node-1",), ("run-1",), "node-1 failed 2 times (recovery.nodes.avoidAfter 2)")


def test_a_pod_that_trains_is_not_moved() -> None:
    assert decide(RESTARTING) == Avoid(("node-1",), (), "node-1 failed 2 times (recovery.nodes.avoidAfter 2)")


def test_a_node_with_evidence_of_failed_hardware_is_avoided_at_the_first_failure() -> None:
    proven = History("run", node_failures={"node-1": 1}, proven={"node-1": "has DeviceMemory (ECC)"})
    assert decide(replace(RESTARTING, history=proven)) == Avoid(
        ("node-1",), (), "node-1 has DeviceMemory (ECC)"
    )
    assert isinstance(decide(replace(RESTARTING, history=proven, limits=LIMITS)), Wait), "disabled"


BOTH = History("run", node_failures={"node-1": 2, "node-0": 2})


@pytest.mark.parametrize(
    ("limits", "nodes"),
    [
        (AvoidanceLimits(4, {"node-0": 1, "node-1": 1, "node-2": 1, "node-3": 1}), ("node-0", "node-1")),
        (AvoidanceLimits(1, {"node-0": 1, "node-1": 1, "node-2": 1, "node-3": 1}), ("node-0",)),
        (AvoidanceLimits(4, {"node-0": 1, "node-1": 1, "node-2": 1}), ("node-0",)),
        (AvoidanceLimits(4, {"node-0": 3, "node-1": 1}), ("node-1",)),
        (AvoidanceLimits(4, {"node-1": 1, "node-2": 1}), ("node-0",)),
        (AvoidanceLimits(4), ("node-0", "node-1")),
    ],
    ids=["enough", "one now", "one spare", "the larger is needed", "a lost one takes no room", "unknown"],
)
def test_a_run_never_avoids_nodes_that_it_needs(limits: AvoidanceLimits, nodes: tuple[str, ...]) -> None:
    decision = decide(replace(RESTARTING, history=BOTH, avoidance=limits))
    assert isinstance(decision, Avoid)
    assert decision.nodes == nodes


def test_a_run_without_a_spare_node_avoids_none() -> None:
    limits = AvoidanceLimits(4, {"node-0": 1, "node-1": 1})
    assert isinstance(decide(replace(RESTARTING, history=BOTH, avoidance=limits)), Wait)


def test_nodes_are_released_at_once_where_the_others_have_no_room() -> None:
    limits = AvoidanceLimits(0, {"node-0": 1, "node-9": 1})
    seen = waiting(5, releasable=frozenset({"node-9"}), history=replace(FAILING, node_failures={}))
    avoiding = replace(seen.history, avoided=frozenset({"node-9"}))
    assert decide(replace(seen, avoidance=limits, history=avoiding)) == ReleaseNodes(
        ("node-9",), "the other nodes have room for 1 of 2 pods"
    )


def test_a_node_without_evidence_is_released() -> None:
    history = History("run", avoided=frozenset({"node-1"}), cleared=frozenset({"node-1"}))
    assert decide(replace(RESTARTING, history=history)) == ReleaseNodes(
        ("node-1",), "there is no evidence against it any longer"
    )


@pytest.mark.parametrize(
    "seen",
    [
        replace(RESTARTING, history=replace(FAILING, avoided=frozenset({"node-1"}))),
        replace(RESTARTING, limits=LIMITS),
        replace(RESTARTING, history=replace(FAILING, node_failures={"node-1": 1})),
        replace(RESTARTING, pods=on_nodes({"deleting": True}, {})),
        replace(RESTARTING, history=replace(FAILING, avoided=MANY)),
    ],
    ids=["already avoided", "disabled", "not often enough", "pods are being deleted", "too many are avoided"],
)
def test_a_node_is_not_avoided_while(seen: Observation) -> None:
    assert isinstance(decide(seen), Wait)


def waiting(seconds: float, **changes: Any) -> Observation:
    pods = (*on_nodes({}), PodView(1, PodPhase.PENDING, name="run-1"))
    return replace(HEALTHY, pods=pods, waiting_since=NOW - seconds, **changes)


def test_a_bad_node_is_better_than_none() -> None:
    releasable = frozenset({"node-9"})
    assert decide(waiting(300, releasable=releasable)) == ReleaseNodes(
        ("node-9",), "pods could not be scheduled elsewhere for 300 s"
    )
    early = decide(waiting(200, releasable=releasable))
    assert isinstance(early, Wait)
    assert early.seconds == pytest.approx(100)


ELASTIC = replace(LIMITS, elastic=Elastic(min_count=8, shrink_after=600, grow_after=300))


def test_an_elastic_run_shrinks_to_the_available_accelerators() -> None:
    short = waiting(600, limits=ELASTIC, capacity=ElasticCapacity(requested=16, count=16, fits=8))
    assert decide(short) == Resize(8, "only 8 of 16 accelerators have been available for 600 s")


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
    assert decide(replace(HEALTHY, heartbeat=longer)) == RestartGang("no pod has answered for 1831 s")
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


def test_a_lost_node_is_not_avoided_while_the_run_has_no_room_without_it() -> None:
    limits = AvoidanceLimits(4, {"node-1": 1})
    lost = History("run", node_failures={"node-0": 2})
    assert isinstance(decide(replace(RESTARTING, history=lost, avoidance=limits)), Wait)
