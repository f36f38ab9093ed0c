"""One row of the table done to a run, and everything that must hold afterwards."""

import math
import re
from typing import Any

from testkit.faults.injections import Hit, Scene
from testkit.faults.rows import Row
from testkit.training_run import Step
from testkit.watched_run import SAVE_INTERVAL, Before, WatchedRun, eventually

QUIET_ITERATIONS = 30
"""What a run does undisturbed before a fault is said to have passed it by."""
ROOM = 6 * SAVE_INTERVAL
"""Iterations that a run must have left for a row."""
RESHARD_TOLERANCE = 6e-3
"""Relative difference of a loss once the layout has changed: gradients are summed in another order then, and
weights in bf16 round otherwise. Ten times what was seen (6e-4); a batch of other samples makes 4e-2."""


class ToldWrongly(AssertionError):
    """The run is well, but its status says something else than what was done to it."""


def play(scene: Scene[WatchedRun], row: Row, expected: dict[int, float]) -> None:
    """Do the fault, wait until the run is past it, and check what must hold.

    `expected` is the loss by iteration.
    """
    before = scene.run.settled()
    with scene.undo:
        hit = row.inject(scene)
        after = recovered(scene.run, row, before)
    check_curve(scene.run, expected)
    if row.kinds:
        check_resumed(row, before, after)
    if row.strays:
        eventually(
            "no process of a dead rank to be left in a pod",
            lambda: (scene.run.trains() and not scene.run.strays()) or None,
            seconds=60,
        )
    pods = {pod["metadata"]["name"] for pod in scene.run.pods()}
    assert pods == {scene.run.pod_name(node) for node in range(scene.run.nodes)}
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


def check_curve(run: WatchedRun, expected: dict[int, float]) -> None:
    """Every iteration up to the newest was done, and each loss is the undisturbed run's: to the last digit
    while the run lies as that one did, within RESHARD_TOLERANCE from then on."""
    steps = run.steps()
    different = {}
    for step in steps:
        exact = run.exact_through is None or step.generation <= run.exact_through
        allowed = 0.0 if exact else RESHARD_TOLERANCE
        if not math.isclose(step.loss, expected[step.iteration], rel_tol=allowed, abs_tol=0.0):
            different[step.iteration] = (step.loss, expected[step.iteration])
    assert not different, f"losses that are not the undisturbed run's: {different}"
    assert {s.iteration for s in steps} == set(range(1, max(s.iteration for s in steps) + 1))


def check_resumed(row: Row, before: Before, steps: list[Step]) -> None:
    """The start after the fault was from the checkpoint that the row says, or one finished meanwhile."""
    resumed = before.resumed_from(steps)
    least = before.saved[-1] if row.resumes == "newest" else before.saved[-2]
    assert resumed is not None, "no step was done since"
    assert resumed >= least, f"went on from iteration {resumed} although checkpoint {least} was whole"


def check_told(run: WatchedRun, row: Row, hit: Hit, before: Before) -> None:
    """What status.recovery says of it: kinds, the cause, and the pod, node and rank that were hit."""

    def new() -> list[dict[str, Any]] | None:
        found = run.incidents(before.incidents)
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
    causes = (row.cause, *(row.later or ()))
    if row.later is not None and len(found) != len(causes):
        raise ToldWrongly(f"told as {len(found)} incidents, expected {len(causes)}: {found}")
    for incident, cause in zip(found, causes, strict=False):
        wanted = cause.format(pod=hit.pod, node=hit.node, rank=hit.rank)
        if not re.search(wanted, incident["cause"]):
            raise ToldWrongly(f"the cause is {incident['cause']!r}, expected {wanted!r}: {found}")
    for name in row.names:
        if first.get(name) != getattr(hit, name):
            raise ToldWrongly(f"{name} is {first.get(name)!r}, {getattr(hit, name)!r} was hit: {first}")
