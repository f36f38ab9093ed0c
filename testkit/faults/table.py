"""Plays one row of the table against a run and checks everything that must hold afterwards."""

import math
import re
from dataclasses import dataclass
from typing import Any

from megatron_trainer.data.sample_history import SampleHistory, difference

from testkit.errors import TestkitError
from testkit.faults.injections import FaultContext, InjectedFault
from testkit.faults.rows import Row
from testkit.training_run import IterationRecord
from testkit.waiting import wait_until
from testkit.watched_run import SAVE_INTERVAL, StateBeforeFault, WatchedRun

QUIET_ITERATIONS = 30
"""Iterations without an interruption after which a fault counts as harmless."""
ITERATIONS_PER_ROW = 6 * SAVE_INTERVAL
"""Iterations that a run must have left for a row."""
RESHARD_TOLERANCE = 6e-3
"""Relative difference of a loss after a change of layout: gradients are summed in another order then, and
weights in bf16 are rounded differently. Ten times what was measured (6e-4); other samples in a batch make
4e-2."""


@dataclass(frozen=True)
class UndisturbedRun:
    """What every iteration of a run must have, disturbed or not."""

    losses: dict[int, float]
    """By iteration."""
    samples: dict[int, list[int]]
    """By iteration: what it read of the training data, sorted."""


class IncidentMismatchError(TestkitError, AssertionError):
    """The run is healthy, but its status reports other incidents than the injected fault."""


def play(context: FaultContext[WatchedRun], row: Row, expected: UndisturbedRun) -> None:
    """Inject the fault, wait until the run has recovered, and check what must hold.

    Args:
        context: The run, settled or about to.
        row: The fault.
        expected: The losses and samples of an undisturbed run.

    Raises:
        IncidentMismatchError: The run recovered and its status is wrong.
        AssertionError, TimeoutError, RunEndedError: The run did not recover as it must.
    """
    run = context.run
    before = run.settled()
    with context.undo:
        fault = row.inject(context)
        after = _wait_for_recovery(run, row, before)
    check_losses(run, expected.losses)
    check_samples(run.samples(), expected.samples, run.saved()[-1])
    if row.incident_kinds:
        _check_resumed(row, before, after)
    if row.check_strays:
        wait_until(
            "the processes of dead ranks to be gone", lambda: run.is_training() and not run.stray_processes()
        )
    gang = sorted(run.place(node) for node in range(run.nodes))
    wait_until(lambda: f"only the pods {gang}; there are {run.places()}", lambda: run.places() == gang)
    _check_incidents(run, row, fault, before)


def _wait_for_recovery(run: WatchedRun, row: Row, before: StateBeforeFault) -> list[IterationRecord]:
    """The run's records once there is one beyond what had been reached before the fault."""
    goal = before.reached + (1 if row.incident_kinds else QUIET_ITERATIONS)

    def beyond() -> list[IterationRecord] | None:
        records = run.records()
        newest = records[-1]
        if newest.iteration >= goal and (newest.generation > before.generation or not row.incident_kinds):
            return records
        run.require_alive()
        return None

    return wait_until(f"iteration {goal} after: {row.name}", beyond, row.recover_within)


def check_losses(run: WatchedRun, expected: dict[int, float]) -> None:
    """Every iteration up to the newest was done, each with the undisturbed run's loss.

    `expected` has the losses by iteration. Losses are equal to the last digit up to the first change of
    layout, and within RESHARD_TOLERANCE after it. Raises AssertionError.
    """
    records = run.records()
    different = {}
    for record in records:
        exact = run.exact_through is None or record.generation <= run.exact_through
        allowed = 0.0 if exact else RESHARD_TOLERANCE
        if not math.isclose(record.loss, expected[record.iteration], rel_tol=allowed, abs_tol=0.0):
            different[record.iteration] = (record.loss, expected[record.iteration])
    assert not different, f"losses that differ from the undisturbed run's: {different}"
    assert {r.iteration for r in records} == set(range(1, max(r.iteration for r in records) + 1))


def check_samples(history: SampleHistory, expected: dict[int, list[int]], until: int) -> None:
    """Every iteration up to `until` read the undisturbed run's samples: no resume repeated or left out any.

    `expected` has the samples by iteration. Of a run that trains, `until` is that of a complete checkpoint:
    all ranks have recorded theirs before. Raises AssertionError.
    """
    found = history.places(until)
    assert sorted(found) == list(range(1, until + 1)), f"samples are recorded of {sorted(found)} alone"
    different = difference(found, expected)
    assert different is None, f"samples that differ from the undisturbed run's: {different}"


def _check_resumed(row: Row, before: StateBeforeFault, records: list[IterationRecord]) -> None:
    """The start after the fault loaded the checkpoint that the row expects, or one completed meanwhile."""
    resumed = before.resumed_from(records)
    least = before.saved[-1] if row.resumes == "newest" else before.saved[-2]
    assert resumed is not None, "no iteration was done since the fault"
    assert resumed >= least, f"resumed from iteration {resumed} although checkpoint {least} is intact"


def _check_incidents(run: WatchedRun, row: Row, fault: InjectedFault, before: StateBeforeFault) -> None:
    """status.recovery.history reports the kinds and causes, and the pod, node and rank that were hit."""
    if not row.incident_kinds:
        if found := run.incidents(before.incidents):
            raise IncidentMismatchError(f"incidents reported for a harmless fault: {found}")
        return
    try:
        found = wait_until(
            "status.recovery.history to report the incident",
            lambda: run.recovered_incidents(before.incidents),
        )
    except TimeoutError as error:
        raise IncidentMismatchError(f"{error}; status.recovery: {run.recovery()}") from error
    found_kinds = {incident["kind"] for incident in found}
    if not found_kinds <= row.incident_kinds:
        raise IncidentMismatchError(
            f"reported as {sorted(found_kinds)}, expected {sorted(row.incident_kinds)}: {found}"
        )
    _check_causes(row, fault, found)
    for name in row.reported:
        if found[0].get(name) != getattr(fault, name):
            raise IncidentMismatchError(
                f"{name} is {found[0].get(name)!r}, expected {getattr(fault, name)!r}: {found[0]}"
            )


def _check_causes(row: Row, fault: InjectedFault, found: list[dict[str, Any]]) -> None:
    causes = (row.cause, *(row.later_causes or ()))
    if row.later_causes is not None and len(found) != len(causes):
        raise IncidentMismatchError(f"{len(found)} incidents reported, expected {len(causes)}: {found}")
    for incident, cause in zip(found, causes, strict=False):
        expected = cause.format(pod=fault.pod, node=fault.node, rank=fault.rank)
        if not re.search(expected, incident["cause"]):
            raise IncidentMismatchError(f"the cause is {incident['cause']!r}, expected {expected!r}: {found}")
