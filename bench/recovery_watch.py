"""How every system is watched from outside, in the same way, ten times a second."""

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
from testkit.api_server import ApiError
from testkit.faults.infrastructure import VICTIM_NODE
from testkit.training_run import Step
from testkit.watched_run import NODES, RANKS_PER_NODE, eventually

SETTLE_SECONDS = 180.0
"""For a start and the first checkpoints, on a machine with other work."""
AWAY = (ApiError, HTTPError, ClusterError)
"""What may be raised while a part of the control plane comes back."""

Goal = Callable[[list[Step], int], Step | None]
"""The step at which a trial is over, among those since all ranks were started anew, in their order, and the
newest iteration that had been done before."""


@dataclass(frozen=True)
class Seen:
    """What became of a system after a fault."""

    cell: Cell
    anew: tuple[Step, ...] = ()
    """Steps since all ranks were started anew, in their order; empty where they were not."""
    ended: str | None = None
    """What the system said of its own end."""
    starts: int = 0
    """How often all ranks were started anew."""


def restart(system: System, forget: bool = False) -> None:
    """Begin again: from the newest checkpoint, or from nothing."""
    system.stop()
    if forget:
        system.forget()
    system.start()


def settle(system: System, checkpoints: int = 1) -> None:
    """Wait until it trains and has that many checkpoints, the newest since its last start.

    Raises RuntimeError when the system ends, TimeoutError when it takes too long.
    """

    def ready() -> bool | None:
        if why := system.ended():
            raise RuntimeError(f"{system.key} ended before the fault: {why}")
        steps, saved = system.steps(), system.saved()
        if not steps or len(saved) < checkpoints or len(system.all_ranks()) != NODES * RANKS_PER_NODE:
            return None
        # An iteration done again marks the last start.
        again = max(
            (i for i in range(1, len(steps)) if steps[i].iteration <= steps[i - 1].iteration), default=0
        )
        return (steps[again].iteration < saved[-1] <= steps[-1].iteration - 2) or None

    eventually(f"{system.key} to train past a checkpoint of its own", ready, SETTLE_SECONDS)


def spread(system: System) -> None:
    """See to a pod on the node that will be lost; after the loss of it, all are on the other.

    Raises RuntimeError when none comes to be there.
    """
    for _ in range(4):
        eventually(f"the pods of {system.key} to have nodes", lambda: system.bound() or None, SETTLE_SECONDS)
        pods = [system.pod(node) or {} for node in range(NODES)]
        if any(pod.get("spec", {}).get("nodeName") == VICTIM_NODE for pod in pods):
            return
        restart(system)
    raise RuntimeError(f"the scheduler put no pod of {system.key} on {VICTIM_NODE} in 4 starts")


def beyond(anew: list[Step], reached: int) -> Step | None:
    """The first iteration that had not been done before."""
    return next((step for step in anew if step.iteration > reached), None)


def watch(
    system: System,
    fault: Callable[[], object],
    cap: float = CAP_SECONDS,
    goal: Goal = beyond,
    hopeless: int | None = None,
) -> Seen:
    """Do the fault and watch until `goal`, until the system ends, or until `cap` seconds have gone by.

    `hopeless`: so many starts in a row that ended without a step are enough too.
    """
    old = system.all_ranks()
    began = time.time()
    fault()
    gone: float | None = None
    bound_since: float | None = None
    ranks: set[Process] = set()
    started = 0.0
    starts, last, any_step = 0, set[Process](), False
    ended: str | None = None
    while True:
        now = time.time()
        if gone is None and not any(rank.alive for rank in old):
            gone = now
        with contextlib.suppress(*AWAY):
            if not system.bound():
                bound_since = None
            elif bound_since is None:
                bound_since = now
            current = system.all_ranks() - old
            if current != ranks:
                ranks = set(current)
                if len(current) == NODES * RANKS_PER_NODE:
                    started = now
                    # Ranks of one pod that met the next ones of the other are no start of their own.
                    if last.isdisjoint(current):
                        starts, last = starts + 1, ranks
            ended = system.ended()
        if gone is not None and started:
            steps = system.steps()
            reached = max((s.iteration for s in steps if s.time <= gone), default=0)
            anew = [s for s in steps if s.time > started]
            any_step = any_step or bool(anew)
            if done := goal(anew, reached):
                marks = [began, gone, bound_since or gone, started, anew[0].time, done.time]
                return Seen(Cell(_spans(marks)), tuple(anew), starts=starts)
        if ended:
            return Seen(Cell(stuck=f"after {now - began:.0f} s: {ended}"), ended=ended, starts=starts)
        if starts == hopeless and not any_step and any(not rank.alive for rank in last):
            return Seen(Cell(stuck=f"{starts} starts in a row ended without a step"), starts=starts)
        if now - began > cap:
            return Seen(Cell(stuck=f"no new iteration in {cap:.0f} s"), starts=starts)
        time.sleep(0.1)


def _spans(marks: list[float]) -> dict[str, float]:
    """Seconds of each phase; one that ended before the phase before it took none."""
    ends = list(itertools.accumulate(marks, max))
    return dict(zip(PHASES, (after - before for before, after in itertools.pairwise(ends)), strict=True))
