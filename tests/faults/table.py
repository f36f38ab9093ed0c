"""One row of the table done to a run, and everything that must hold afterwards."""

import re
from dataclasses import dataclass
from typing import Any

from demo.run import Step
from tests.faults.injections import Hit, Scene
from tests.faults.rows import Row
from tests.faults.watched import NODES, SAVE_INTERVAL, WatchedRun, eventually

QUIET_ITERATIONS = 30
"""What a run does undisturbed before a fault is said to have passed it by."""
ROOM = 6 * SAVE_INTERVAL
"""Iterations that a run must have left for a row."""


class ToldWrongly(AssertionError):
    """The run is well, but its status says something else than what was done to it."""


@dataclass(frozen=True)
class Before:
    """A run just before a fault."""

    reached: int
    generation: int
    saved: list[int]
    incidents: int


def incidents(recovery: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = recovery.get("history", [])
    return found


def settled(run: WatchedRun) -> Before:
    """Wait until the run trains with all its ranks and has two checkpoints, the newest since the last start.

    Then the budget of restarts is whole, and a damaged checkpoint has one before it.
    """

    def ready() -> Before | None:
        run.require_alive()
        steps = run.steps()
        if not steps or not run.trains():
            return None
        generation = steps[-1].generation
        first = next(step.iteration for step in steps if step.generation == generation)
        saved = run.saved()
        if len(saved) < 2 or saved[-1] < first or steps[-1].iteration < saved[-1] + 2:
            return None
        recovery = run.recovery()
        number = max((i["number"] for i in incidents(recovery)), default=0)
        return Before(steps[-1].iteration, generation, saved, number)

    return eventually(f"{run.name} to train on past a checkpoint", ready)


def play(scene: Scene[WatchedRun], row: Row, expected: dict[int, float]) -> None:
    """Do the fault, wait until the run is past it, and check what must hold.

    `expected` is the loss by iteration.
    """
    before = settled(scene.run)
    with scene.undo:
        hit = row.inject(scene)
        after = recovered(scene.run, row, before)
    check_curve(scene.run.steps(), expected)
    if row.kinds:
        check_resumed(row, before, after)
    if row.strays:
        eventually(
            "no process of a dead rank to be left in a pod",
            lambda: (scene.run.trains() and not scene.run.strays()) or None,
            seconds=60,
        )
    pods = {pod["metadata"]["name"] for pod in scene.run.pods()}
    assert pods == {scene.run.pod_name(node) for node in range(NODES)}
    check_told(scene.run, row, hit, before)


def recovered(run: WatchedRun, row: Row, before: Before) -> list[Step]:
    """The run's steps once there is one beyond what had been reached before the fault."""
    goal = before.reached + (1 if row.kinds else QUIET_ITERATIONS)

    def beyond() -> list[Step] | None:
        steps = run.steps()
        newest = steps[-1]
        if newest.iteration >= goal and (newest.generation > before.generation or not row.kinds):
            return steps
        run.require_alive()
        return None

    return eventually(f"iteration {goal} after: {row.name}", beyond, row.seconds)


def check_curve(steps: list[Step], expected: dict[int, float]) -> None:
    """Every iteration up to the newest was done, and each loss is the undisturbed run's to the last digit."""
    different = {
        s.iteration: (s.loss, expected[s.iteration]) for s in steps if s.loss != expected[s.iteration]
    }
    assert not different, f"losses that are not the undisturbed run's: {different}"
    assert {s.iteration for s in steps} == set(range(1, max(s.iteration for s in steps) + 1))


def check_resumed(row: Row, before: Before, steps: list[Step]) -> None:
    """The start after the fault was from the checkpoint that the row says, or one finished meanwhile."""
    anew = next(step for step in steps if step.generation > before.generation)
    least = before.saved[-1] if row.resumes == "newest" else before.saved[-2]
    assert anew.iteration - 1 >= least, (
        f"went on from iteration {anew.iteration - 1} although checkpoint {least} was whole"
    )


def check_told(run: WatchedRun, row: Row, hit: Hit, before: Before) -> None:
    """What status.recovery says of it: kinds, the cause, and the pod, node and rank that were hit."""

    def new() -> list[dict[str, Any]] | None:
        found = [i for i in incidents(run.recovery()) if i["number"] > before.incidents]
        return found if not row.kinds or (found and all(i.get("recoveredAt") for i in found)) else None

    try:
        found = eventually("status.recovery.history to tell of it", new, seconds=30)
    except TimeoutError as late:
        raise ToldWrongly(f"{late}; status.recovery: {run.recovery()}") from late
    kinds = {incident["kind"] for incident in found}
    if not kinds <= row.kinds:
        raise ToldWrongly(f"told as {sorted(kinds)}, expected {sorted(row.kinds)}: {found}")
    if not row.kinds:
        return
    first = found[0]
    wanted = row.cause.format(pod=hit.pod, node=hit.node, rank=hit.rank)
    if not re.search(wanted, first["cause"]):
        raise ToldWrongly(f"the cause is {first['cause']!r}, expected {wanted!r}: {found}")
    for name in row.names:
        if first.get(name) != getattr(hit, name):
            raise ToldWrongly(f"{name} is {first.get(name)!r}, {getattr(hit, name)!r} was hit: {first}")
