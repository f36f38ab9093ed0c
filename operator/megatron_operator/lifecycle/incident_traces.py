"""Incidents as traces: from a run's last step before a failure to its first new iteration after it."""

from dataclasses import dataclass
from typing import Final

from megatron_operator.api.conditions import Phase
from megatron_operator.api.recovery_status import Incident, LostSeconds, RecoveryStatus
from megatron_operator.api.status import MegatronRecipeStatus
from megatron_operator.api.times import seconds
from megatron_operator.lifecycle.incident_history import detected_at, known_duration
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.manifests import pytorchjob
from megatron_operator.manifests.job_backends import backend_of_kind

PHASES: Final = tuple(LostSeconds.model_fields)
"""detect, schedule, start, load, redo: the phases of an incident, in their order."""

Attribute = str | int | float


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """One phase of an incident. Times are seconds since the epoch."""

    name: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class IncidentTrace:
    """One incident that is over, and what its time went to. Times are seconds since the epoch."""

    uid: str
    """UID of the recipe."""
    number: int
    """1 for the run's first incident."""
    begin: float
    """Last step before it."""
    end: float
    """First new iteration; where the run did not get there, the end of the last phase that is known."""
    phases: tuple[PhaseSpan, ...]
    attributes: dict[str, Attribute]
    """Those of Kubernetes by the names of OpenTelemetry's semantic conventions, the others `megatron.*`."""
    recovered: bool
    """Whether a new iteration followed."""


def finished_traces(status: StatusBuilder, before: MegatronRecipeStatus) -> list[IncidentTrace]:
    """The incidents that are over in `status` and were not in `before`, oldest first.

    An incident is over with the first new iteration after it, and with that after a later incident. It is
    also over when the run has ended.
    """
    recovery = before.recovery or RecoveryStatus()
    known = {each.number for each in recovery.history}
    was_open = _open_numbers(recovery, ended=before.phase in (Phase.SUCCEEDED, Phase.FAILED))
    is_open = _open_numbers(status.recovery, ended=status.ended)
    return [
        _trace(status, each)
        for each in status.recovery.history
        if each.number not in is_open and (each.number in was_open or each.number not in known)
    ]


def _open_numbers(recovery: RecoveryStatus, *, ended: bool) -> set[int]:
    if ended:
        return set()
    over = max((each.number for each in recovery.history if each.seconds.redo is not None), default=0)
    return {each.number for each in recovery.history if each.number > over}


def _trace(status: StatusBuilder, incident: Incident) -> IncidentTrace:
    lost = incident.seconds
    begin = at = detected_at(incident) - known_duration(lost.detect)
    phases = []
    for name in PHASES:
        if (duration := known_duration(getattr(lost, name))) > 0:
            phases.append(PhaseSpan(name, at, at + duration))
            at += duration
    end = max(at, seconds(incident.recovered_at) or 0.0)
    attributes = _attributes(status, incident)
    recovered = incident.recovered_at is not None
    return IncidentTrace(status.uid, incident.number, begin, end, tuple(phases), attributes, recovered)


def _attributes(status: StatusBuilder, incident: Incident) -> dict[str, Attribute]:
    namespace, name = status.key
    found = {
        "k8s.namespace.name": namespace,
        "k8s.pod.name": _pod_name(status, incident),
        "k8s.node.name": incident.node,
        "megatron.recipe": name,
        "megatron.incident.number": incident.number,
        "megatron.incident.kind": incident.kind,
        "megatron.incident.cause": incident.cause,
        "megatron.incident.pod": incident.pod,
        "megatron.incident.rank": incident.rank,
        "megatron.incident.exit_code": incident.exit_code,
        "megatron.iteration": incident.iteration,
        "megatron.resumed_from": incident.resumed_from,
        "megatron.lost_iterations": incident.lost_iterations,
    }
    return {key: value for key, value in found.items() if value is not None}


def _pod_name(status: StatusBuilder, incident: Incident) -> str | None:
    """The name of the incident's pod; None where the status has only its place in the gang.

    Pods of a PyTorchJob are named by that place; those of other jobs have random suffixes.
    """
    job = status.current.job
    if incident.pod is None or job is None or backend_of_kind(job.kind) is not pytorchjob:
        return None
    return f"{job.name}-{incident.pod}"
