"""What the templates show of a journal: plain values, which the templates escape."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from megatron_contract.incident import ReportedIncident
from megatron_contract.limits import MAX_INCIDENTS

from megatron_operator.api.recovery_status import Incident
from megatron_operator.api.times import timestamp
from megatron_operator.cli.timeline import KINDS
from megatron_operator.lifecycle.reported_incidents import KINDS as STATUS_KINDS
from megatron_operator.lifecycle.status_reading import read_status
from megatron_operator.ui.charts import short
from megatron_operator.ui.journals import JournalCourse, JournalRun
from megatron_operator.ui.run_list import row, utc

Object = dict[str, Any]
MAX_EVENTS: Final = 500
"""Entries of a timeline, the newest."""
RESUMED: Final = "Resumed"
_PHASES: Final = (
    ("met_at", "Rendezvous", "all pods have met"),
    ("loaded_at", "Loaded", "the checkpoint is loaded"),
    ("first_step_at", RESUMED, "the first iteration after it is done"),
    ("caught_up_at", "CaughtUp", "the iterations that were lost are repeated"),
)
"""Times of an incident, and what the timeline has for each."""


@dataclass(frozen=True, slots=True)
class JournalRow:
    """A journal in the list."""

    folder: str
    name: str
    uid: str
    directory: str
    iteration: str
    loss: str
    speed: str
    last: str
    """When the last iteration was done."""
    restarts: str
    incident: str
    problems: tuple[str, ...]
    """Without the path of the directory."""


def journal_row(run: JournalRun) -> JournalRow:
    """A journal in the list; ages are those at its last record."""
    shown = row(run.recipe, run.until, ago="before the last record")
    return JournalRow(
        run.folder,
        run.name,
        run.uid,
        run.directory,
        shown.iteration,
        shown.loss,
        shown.speed,
        "–" if run.last is None or run.last.time is None else utc(timestamp(run.last.time)),
        _restarts(run),
        shown.incident,
        tuple(each.removeprefix(f"{run.directory}/") for each in run.problems),
    )


def restarts(run: JournalRun) -> int:
    """Starts of the ranks of all pods after the first one."""
    last = 0 if run.last is None else run.last.generation
    return max(run.journal.stored.generation, last, 1) - 1


def incidents(run: JournalRun) -> list[Incident]:
    """The incidents of the journal in the form of the status."""
    recovery = read_status(run.recipe["status"])[0].recovery
    return [] if recovery is None else recovery.history


def facts(run: JournalRun, course: JournalCourse) -> list[tuple[str, str]]:
    """The first lines of a journal's page."""
    last, started, found = run.last, run.journal.stored.first_started_at, []
    if last is not None:
        found.append(("Last iteration", f"{last.iteration:,}{_at(last.time)}"))
        if last.lm_loss is not None:
            found.append(("Loss", f"{last.lm_loss:.4g}"))
        if last.tokens_per_second is not None:
            each = f" ({short(float(last.tokens or 0))} in {last.step_seconds:.3g} s)"
            found.append(("Tokens/s", f"{last.tokens_per_second:,.0f}{each}"))
    if started is not None:
        found.append(("First start", utc(timestamp(started))))
    elif course.started_at is not None:
        found.append(("First iteration recorded", utc(timestamp(course.started_at))))
    if (newest := course.checkpoints.newest_complete) is not None:
        found.append(("Newest complete checkpoint", f"iteration {newest.iteration:,}"))
    found.append(("Restarts", _restarts(run)))
    if course.complete:
        if course.repeated:
            found.append(("Repeated", f"{course.repeated:,} iterations"))
        if last is not None and started is not None and run.until > started:
            share = min(1.0, course.useful_seconds / (run.until - started))
            found.append(("Goodput", f"{share:.1%} of wall time from the first start to the last record"))
    return found


def _restarts(run: JournalRun) -> str:
    return "–" if run.last is None and run.journal.problem else f"{restarts(run):,}"


def incident_note(run: JournalRun) -> str | None:
    """Why there may have been more interruptions than the journal has; None where it has all."""
    count, known = restarts(run), len(run.journal.stored.incidents)
    if run.journal.problem is not None or count <= known:
        return None
    kept = f"keeps the newest {MAX_INCIDENTS}" if known == MAX_INCIDENTS else f"has {known:,}"
    return f"The run was restarted {count:,} times; the journal {kept}. The others are in the timeline only."


def events(run: JournalRun, course: JournalCourse) -> list[tuple[str, str, str]]:
    """Time, reason and message of starts, incidents with their phases, and checkpoints, newest first."""
    found = sorted(_events(run, course), key=lambda each: each[0])
    return [(utc(timestamp(time)), reason, text) for time, reason, text in reversed(found[-MAX_EVENTS:])]


def checkpoints(course: JournalCourse) -> list[tuple[str, str, str]]:
    """Iteration, time and state of the newest checkpoints, newest first."""
    return [
        (f"{each.iteration:,}", utc(each.time), each.problem or "complete")
        for each in course.checkpoints.newest
    ]


def _events(run: JournalRun, course: JournalCourse) -> Iterator[tuple[float, str, str]]:
    stored, numbers = run.journal.stored, {}
    if (started := stored.first_started_at or course.started_at) is not None:
        yield started, "Started", ""
    resumed = {each.generation for each in course.resumes if each.time is not None}
    for number, each in enumerate(stored.incidents, 1):
        numbers[each.generation] = f"incident {number}: "
        yield from _phases(number, each, resumed=each.generation in resumed)
    for resume in course.resumes:
        if resume.time is not None:
            again = resume.before + 1 - resume.first
            repeated = f"; {again:,} to repeat" if again > 0 else ""
            text = f"iteration {resume.first:,} after {resume.before:,}{repeated}"
            yield resume.time, RESUMED, numbers.get(resume.generation, "") + text
    if run.last is not None and run.last.time is not None:
        yield run.last.time, "LastIteration", f"iteration {run.last.iteration:,}"


def _phases(number: int, incident: ReportedIncident, *, resumed: bool) -> Iterator[tuple[float, str, str]]:
    """The times of an incident; `resumed`: another entry has that of the first iteration after it."""
    kind = STATUS_KINDS.get(incident.kind, incident.kind)
    yield incident.detected_at, KINDS.get(kind, kind), f"incident {number}: {incident.cause}"
    for field, reason, text in _PHASES:
        time = None if resumed and reason == RESUMED else getattr(incident, field)
        if time is not None:
            yield time, reason, f"incident {number}: {text}"


def _at(time: float | None) -> str:
    return "" if time is None else f", {utc(timestamp(time))}"
