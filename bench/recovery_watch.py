"""Observes every system in the same way, from outside and ten times a second."""

import contextlib
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

from localcluster.errors import ClusterError
from localcluster.faults import Process
from urllib3.exceptions import HTTPError

from bench.recovery_report import CAP_SECONDS, PHASES, Cell
from bench.recovery_systems import System
from testkit.errors import ApiError, RunEndedError
from testkit.faults.infrastructure import VICTIM_NODE
from testkit.training_run import IterationRecord
from testkit.waiting import wait_until
from testkit.watched_run import NODES, RANKS_PER_NODE

SETTLE_SECONDS = 180.0
"""For a start and the first checkpoints."""
UNAVAILABLE = (ApiError, HTTPError, ClusterError)
"""Errors that may be raised while a part of the control plane restarts."""

Goal = Callable[[list[IterationRecord], int], IterationRecord | None]
"""Given the records since all ranks restarted and the newest iteration before the fault: the record that ends
the trial, or None."""


@dataclass(frozen=True)
class Observation:
    """How a system behaved after a fault."""

    cell: Cell
    new_records: tuple[IterationRecord, ...] = ()
    """Iterations since all ranks restarted, in order; empty where they did not."""
    final_state: str | None = None
    """The system's final condition and message, where it ended."""
    starts: int = 0
    """How often all ranks were restarted."""


def restart(system: System, from_scratch: bool = False) -> None:
    """Stop and start: from the newest checkpoint, or without any."""
    system.stop()
    if from_scratch:
        system.delete_checkpoints()
    system.start()


def settle(system: System, checkpoints: int = 1) -> None:
    """Wait until it trains and has `checkpoints` checkpoints, the newest made since its last start.

    Raises RunEndedError when the system ends first, TimeoutError when it takes too long.
    """

    def ready() -> bool | None:
        if final := system.final_state():
            raise RunEndedError(f"{system.key} ended before the fault: {final}")
        records, saved = system.records(), system.saved()
        if not records or len(saved) < checkpoints or len(system.all_ranks()) != NODES * RANKS_PER_NODE:
            return None
        # A repeated iteration marks the last start.
        again = max(
            (i for i in range(1, len(records)) if records[i].iteration <= records[i - 1].iteration), default=0
        )
        return (records[again].iteration < saved[-1] <= records[-1].iteration - 2) or None

    wait_until(f"{system.key} to train past a checkpoint of this start", ready, SETTLE_SECONDS)


def spread(system: System) -> None:
    """Restart until a pod is on VICTIM_NODE: after a loss of that node, all pods are on the other one.

    Raises RunEndedError when none is after 4 starts.
    """
    for _ in range(4):
        wait_until(f"the pods of {system.key} to have nodes", system.bound, SETTLE_SECONDS)
        pods = [system.pod(node) or {} for node in range(NODES)]
        if any(pod.get("spec", {}).get("nodeName") == VICTIM_NODE for pod in pods):
            return
        restart(system)
    raise RunEndedError(f"the scheduler put no pod of {system.key} on {VICTIM_NODE} in 4 starts")


def first_new_iteration(new_records: list[IterationRecord], reached: int) -> IterationRecord | None:
    """The first iteration that had not been done before."""
    return next((record for record in new_records if record.iteration > reached), None)


def watch(
    system: System,
    fault: Callable[[], object],
    cap: float = CAP_SECONDS,
    goal: Goal = first_new_iteration,
    give_up_after: int | None = None,
) -> Observation:
    """Inject the fault and observe until `goal`, until the system ends, or for `cap` seconds.

    Args:
        system: A settled system.
        fault: Injects the fault.
        cap: Seconds after which the system counts as stuck.
        goal: Ends the trial.
        give_up_after: So many starts in a row without an iteration end the trial too.
    """
    old = system.all_ranks()
    began = time.time()
    fault()
    gone: float | None = None
    bound_since: float | None = None
    ranks, started = set[Process](), 0.0
    starts, last, any_iteration = 0, set[Process](), False
    final: str | None = None
    while True:
        now = time.time()
        if gone is None and not any(rank.alive for rank in old):
            gone = now
        with contextlib.suppress(*UNAVAILABLE):
            if not system.bound():
                bound_since = None
            elif bound_since is None:
                bound_since = now
            current = system.all_ranks() - old
            if current != ranks:
                ranks = set(current)
                if len(current) == NODES * RANKS_PER_NODE:
                    started = now
                    # Old ranks of one pod together with new ranks of the other are no separate start.
                    if last.isdisjoint(current):
                        starts, last = starts + 1, ranks
            final = system.final_state()
        if gone is not None and started:
            records = system.records()
            reached = max((r.iteration for r in records if r.time <= gone), default=0)
            new = [r for r in records if r.time > started]
            any_iteration = any_iteration or bool(new)
            if done := goal(new, reached):
                marks = [began, gone, bound_since or gone, started, new[0].time, done.time]
                return Observation(Cell(_spans(marks)), tuple(new), starts=starts)
        if final:
            cell = Cell(stuck=f"after {now - began:.0f} s: {final}")
            return Observation(cell, final_state=final, starts=starts)
        if starts == give_up_after and not any_iteration and any(not rank.alive for rank in last):
            return Observation(
                Cell(stuck=f"{starts} starts in a row ended without an iteration"), starts=starts
            )
        if now - began > cap:
            return Observation(Cell(stuck=f"no new iteration in {cap:.0f} s"), starts=starts)
        time.sleep(0.1)


def _spans(marks: list[float]) -> dict[str, float]:
    """Seconds of each phase; a phase that ended before its predecessor took none."""
    ends = list(itertools.accumulate(marks, max))
    return dict(zip(PHASES, (after - before for before, after in itertools.pairwise(ends)), strict=True))
