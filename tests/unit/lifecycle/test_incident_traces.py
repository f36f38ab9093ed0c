"""Which incidents become traces, and which times their spans have."""

from typing import Any

import pytest
from megatron_operator.api.recovery_status import Incident, LostSeconds, RecoveryStatus
from megatron_operator.api.status import JobStatus, MegatronRecipeStatus
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.incident_traces import IncidentTrace, PhaseSpan, finished_traces
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.manifests import jobset, trainjob

T0 = 1_800_000_000
RECIPE = {"metadata": {"namespace": "research", "name": "run", "uid": "uid-1", "generation": 1}}
PHASES = {"detect": 2.0, "schedule": 3.0, "start": 4.0, "load": 5.0, "redo": 6.0}


def incident(number: int, lost: dict[str, float], **fields: Any) -> Incident:
    fields = {"kind": "pod", "cause": "lost", "time": timestamp(T0)} | fields
    return Incident(number=number, seconds=LostSeconds(**lost), **fields)


def status_with(
    *incidents: Incident, phase: str = "Training", job: JobStatus | None = None
) -> MegatronRecipeStatus:
    return MegatronRecipeStatus(phase=phase, recovery=RecoveryStatus(history=list(incidents)), job=job)


def traces(before: MegatronRecipeStatus, after: MegatronRecipeStatus) -> list[IncidentTrace]:
    return finished_traces(StatusBuilder(RECIPE, T0 + 100, after), before)


UNRECOVERED = incident(1, {"detect": 2.0})
RECOVERED = incident(1, PHASES, recovered_at=timestamp(T0 + 12))


def test_phases_follow_each_other_from_the_last_step_to_the_first_new_iteration() -> None:
    [trace] = traces(status_with(UNRECOVERED), status_with(RECOVERED))
    assert trace.phases == (
        PhaseSpan("detect", T0 - 2, T0),
        PhaseSpan("schedule", T0, T0 + 3),
        PhaseSpan("start", T0 + 3, T0 + 7),
        PhaseSpan("load", T0 + 7, T0 + 12),
        PhaseSpan("redo", T0 + 12, T0 + 18),
    )
    assert (trace.begin, trace.end, trace.recovered) == (T0 - 2, T0 + 18, True)


def test_a_trace_has_what_the_incident_has() -> None:
    found = incident(
        7, PHASES, pod="worker-3", node="node-1", rank=5, exit_code=137, iteration=60, resumed_from=50,
        lost_iterations=10, recovered_at=timestamp(T0 + 12),
    )  # fmt: skip
    after = status_with(found, job=JobStatus(name="run", hash=""))
    [trace] = traces(status_with(), after)
    assert trace.attributes == {
        "k8s.namespace.name": "research",
        "k8s.pod.name": "run-worker-3",
        "k8s.node.name": "node-1",
        "megatron.recipe": "run",
        "megatron.incident.number": 7,
        "megatron.incident.kind": "pod",
        "megatron.incident.cause": "lost",
        "megatron.incident.pod": "worker-3",
        "megatron.incident.rank": 5,
        "megatron.incident.exit_code": 137,
        "megatron.iteration": 60,
        "megatron.resumed_from": 50,
        "megatron.lost_iterations": 10,
    }


@pytest.mark.parametrize(
    "job", [JobStatus(name="run", kind=kind, hash="") for kind in (jobset.KIND, trainjob.KIND)] + [None]
)
def test_a_pod_whose_name_is_not_known_is_given_by_its_place_alone(job: JobStatus | None) -> None:
    """Pods of a JobSet have names like run-worker-3-0-x7k2p."""
    after = status_with(incident(1, PHASES, pod="worker-3", recovered_at=timestamp(T0 + 12)), job=job)
    [trace] = traces(status_with(), after)
    assert "k8s.pod.name" not in trace.attributes
    assert trace.attributes["megatron.incident.pod"] == "worker-3"


AFTER_IT = incident(2, PHASES, recovered_at=timestamp(T0 + 60))


@pytest.mark.parametrize(
    ("before", "after", "numbers"),
    [
        (status_with(), status_with(UNRECOVERED), []),
        (status_with(UNRECOVERED), status_with(UNRECOVERED), []),
        (status_with(RECOVERED), status_with(RECOVERED), []),
        (status_with(UNRECOVERED), status_with(UNRECOVERED, AFTER_IT), [1, 2]),
        (status_with(RECOVERED), status_with(RECOVERED, AFTER_IT), [2]),
        (status_with(UNRECOVERED), status_with(UNRECOVERED, phase="Failed"), [1]),
        (status_with(UNRECOVERED, phase="Failed"), status_with(UNRECOVERED, AFTER_IT), [2]),
        (status_with(), status_with(incident(30, PHASES), incident(31, {})), [30]),
    ],
    ids=[
        "begun", "unchanged", "known", "a later one recovered", "the next one", "the run failed",
        "failed before an edit", "dropped from the history",
    ],
)  # fmt: skip
def test_each_incident_is_sent_once_when_it_is_over(
    before: MegatronRecipeStatus, after: MegatronRecipeStatus, numbers: list[int]
) -> None:
    assert [trace.number for trace in traces(before, after)] == numbers


def test_a_run_that_failed_has_not_recovered_from_its_incident() -> None:
    [trace] = traces(status_with(), status_with(UNRECOVERED, phase="Failed"))
    assert (trace.recovered, trace.begin, trace.end) == (False, T0 - 2, T0)


def test_durations_that_are_none_take_no_time() -> None:
    wild = {"detect": -5.0, "schedule": 0.0, "load": 1.0, "redo": 0.0}
    [trace] = traces(status_with(), status_with(incident(1, wild, recovered_at=timestamp(T0 + 1))))
    assert trace.phases == (PhaseSpan("load", T0, T0 + 1),)
