"""The simulation's arithmetic: every second is in one part, and each kind of fault costs what it must."""

from dataclasses import replace

import pytest
from megatron_operator.api.recipe import NodesSpec, RecoverySpec
from megatron_operator.lifecycle.recovery_policy import UNREACHABLE_PATIENCE

from bench.goodput import SECONDS, phases_of, plain_pytorchjob, table
from bench.interruptions import INTERRUPTIONS, PLANNED, UNEXPECTED, Cause, Effect, Fault, interruptions
from bench.simulated_run import NODE_MONITOR_GRACE, SimulatedRun
from bench.wall_time import Phases, Scale

SMALL = Scale(pods=4, step=10.0, checkpoint_steps=10, checkpoint_stall=5.0, spares=2, repair=50_000.0)
PHASES = Phases(rank_detect=1.0, rank_start=2.0, pod_schedule=3.0, pod_start=10.0)
HOUR = 3600.0
LOADED = SMALL.groups + SMALL.load


def fault(effect: Effect, time: float = 1000.0, pod: int = 1) -> Fault:
    return Fault(time, pod, Cause(str(effect), 1, effect))


def play(*faults: Fault, scale: Scale = SMALL, spec: RecoverySpec | None = None) -> SimulatedRun:
    run = SimulatedRun(scale, PHASES, spec or RecoverySpec(), HOUR)
    run.play(faults)
    assert run.clock.parts.wall == pytest.approx(HOUR), "every second is in one part"
    return run


def test_the_published_interruptions_are_all_there() -> None:
    assert sum(cause.count for cause in UNEXPECTED) == 419
    assert sum(cause.count for cause in UNEXPECTED) + PLANNED.count == INTERRUPTIONS
    faults = interruptions(seed=1, pods=2048, seconds=SECONDS)
    assert len(faults) == INTERRUPTIONS
    assert faults == interruptions(seed=1, pods=2048, seconds=SECONDS), "a seed is a run"
    assert faults != interruptions(seed=2, pods=2048, seconds=SECONDS)


def test_without_faults_only_checkpoints_cost() -> None:
    parts = play().clock.parts
    # 34 intervals of 100 s and their stalls of 5 s, then 30 s.
    assert (parts.useful, parts.checkpoint) == (pytest.approx(3430.0), pytest.approx(170.0))
    assert parts.goodput == pytest.approx(3430 / 3600)


def test_a_dead_rank_costs_its_phases_and_the_iterations_since_the_checkpoint() -> None:
    run = play(fault(Effect.RANK))
    parts = run.clock.parts
    # Nine intervals of 105 s, then 55 s that are lost.
    assert parts.redo == pytest.approx(55.0)
    assert (parts.detect, parts.schedule, parts.start, parts.load) == (1.0, 0.0, 2.0, LOADED)
    assert run.recovery.restarts_by_kind.rank == 1
    assert run.recovery.restarts_since_checkpoint == 0, "pods stayed"


def test_a_hang_is_found_at_the_limit_of_the_watchdog() -> None:
    assert play(fault(Effect.HANG)).clock.parts.detect == pytest.approx(3 * 10.0 + 75.0)


def test_a_lost_node_is_given_up_once_kubernetes_and_the_operator_have_waited() -> None:
    run = play(fault(Effect.NODE))
    parts = run.clock.parts
    assert parts.detect == pytest.approx(NODE_MONITOR_GRACE + UNREACHABLE_PATIENCE)
    assert (parts.schedule, parts.start) == (3.0, SMALL.image_start + PHASES.pod_start)
    assert run.decisions["ForceDelete"] == 1
    assert (run.recovery.restarts_by_kind.node, run.recovery.restarts) == (1, 1)


def test_a_node_with_a_bad_accelerator_is_avoided_at_once() -> None:
    run = play(fault(Effect.ACCELERATOR))
    assert run.decisions["Avoid"] == 1
    assert run.recovery.nodes_avoided == ["node-1"]
    parts = run.clock.parts
    assert parts.start == pytest.approx(PHASES.rank_start + SMALL.image_start + PHASES.pod_start)
    assert parts.load == LOADED
    assert run.failed is None


def test_where_no_node_is_avoided_a_bad_accelerator_ends_the_run_with_its_cause() -> None:
    spec = RecoverySpec(max_restarts=2, nodes=NodesSpec(avoid_after=0))
    run = SimulatedRun(SMALL, PHASES, spec, HOUR)
    run.play([fault(Effect.ACCELERATOR)])
    assert run.failed is not None
    assert "accelerator lost" in run.failed


def test_a_drain_loses_no_iteration_and_no_budget() -> None:
    run = play(fault(Effect.DRAIN))
    assert run.clock.parts.redo == 0.0
    assert run.recovery.restarts == 1
    assert run.recovery.restarts_since_checkpoint == 0


def test_without_a_spare_node_the_run_waits_for_a_repair() -> None:
    scale = replace(SMALL, spares=0, repair=1200.0)
    parts = play(fault(Effect.NODE), scale=scale).clock.parts
    assert parts.schedule == pytest.approx(1200.0 + PHASES.pod_schedule)


def test_a_fault_during_a_recovery_restarts_it() -> None:
    run = play(fault(Effect.RANK, 1000.0), fault(Effect.RANK, 1100.0, pod=2))
    parts = run.clock.parts
    assert parts.load == pytest.approx(100.0 - 3.0 + LOADED)
    assert parts.redo == pytest.approx(55.0), "nothing was done in between"


def test_a_plain_pytorchjob_waits_for_the_collective_and_for_a_person() -> None:
    clock = plain_pytorchjob(SMALL, [fault(Effect.ACCELERATOR)], HOUR, start=12.0, person=500.0)
    parts = clock.parts
    assert parts.wall == pytest.approx(HOUR)
    assert (parts.detect, parts.schedule, parts.start) == (600.0, 500.0, SMALL.image_start + 12.0)


def test_the_table_has_a_line_for_every_part_and_the_goodput() -> None:
    lines = table({"this operator": play().clock.parts})
    assert [line.split()[0] for line in lines[1:]] == [
        "useful",
        "checkpoint",
        "detect",
        "schedule",
        "start",
        "load",
        "redo",
        "goodput",
    ]


def test_phases_are_those_of_the_measured_file() -> None:
    rank = {"detect": 1.0, "schedule": 0.0, "start": 2.0, "load": 1.0}
    pod = {"detect": 1.0, "schedule": 3.0, "start": 10.0, "load": 1.0}
    faults = {"rank": rank, "pod": pod, "hang": None}
    assert phases_of({"systems": {"torchrun": {}, "operator": faults}}) == PHASES


def test_a_file_without_measurements_is_refused_with_the_command_that_makes_them() -> None:
    with pytest.raises(ValueError, match="make bench-recovery"):
        phases_of({"systems": {"operator": {"rank": None}}})
