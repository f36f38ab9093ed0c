"""The size of the status, whatever pods report, and what gives way when it would be too large."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from megatron_contract.progress import ProgressReport
from megatron_operator.api.conditions import Condition
from megatron_operator.api.reasons import Reason
from megatron_operator.api.status import MegatronRecipeStatus
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.ledger_state import update_ledger, update_reported_times
from megatron_operator.lifecycle.node_evidence import NODE_LOST, add_evidence
from megatron_operator.lifecycle.pod_termination import PodEnd
from megatron_operator.lifecycle.progress_reading import ProgressReading, merge_reports
from megatron_operator.lifecycle.recovery import add_incident_events
from megatron_operator.lifecycle.status_builder import LONGEST_EVENT, StatusBuilder
from megatron_operator.lifecycle.status_size import (
    MAX_NODES,
    MAX_STATUS_BYTES,
    MAX_WARNINGS,
    cut,
    json_bytes,
    within_budget,
)
from megatron_operator.lifecycle.status_update import update_status
from megatron_operator.lifecycle.time_ledger import LONGEST_CAUSE, MAX_LOSSES, MAX_MARKS

from tests.unit.conftest import NOW, Run

BUDGET = 100 * 1024
LONGEST_MESSAGE_OF_KUBERNETES = 32_768
INT64 = 2**63 - 1

TEXTS = st.builds(
    lambda text, times: text * times,
    st.text(st.sampled_from('a<>&"\\\n\x01\u2028é語😀'), min_size=1, max_size=3),
    st.integers(1, 3000),
)
NUMBERS = st.integers(0, 10**19) | st.sampled_from([0, 1, 2**53, 10**400])
TIMES = st.floats(-1e300, 1e300) | st.floats(1_799_999_000, 1_800_001_000)
INCIDENTS = st.fixed_dictionaries(
    {"generation": NUMBERS, "detectedAt": TIMES, "cause": TEXTS},
    optional={
        "kind": st.sampled_from(["rank", "pod", "hang", "loss", "new"]),
        "nodeRank": st.integers(0, 3),
        "rank": NUMBERS,
        "iteration": NUMBERS,
        "resumedFrom": NUMBERS,
        "metAt": TIMES,
        "firstStepAt": TIMES,
        "caughtUpAt": TIMES,
    },
)
REPORTS = st.fixed_dictionaries(
    {
        "schema": st.just(1),
        "phase": st.sampled_from(["training", "rendezvous", "loading", "failed"]),
        "generation": NUMBERS,
        "iteration": NUMBERS,
        "trainIters": NUMBERS,
        "warnings": st.lists(st.fixed_dictionaries({"reason": TEXTS, "message": TEXTS}), max_size=20),
        "incidents": st.lists(INCIDENTS, max_size=20),
        "stepSeconds": st.floats(0, 1e300),
        "saveSeconds": st.floats(allow_nan=True),
        "lmLoss": st.floats(allow_nan=True),
        "rankRestarts": NUMBERS,
        "checkpointIteration": NUMBERS,
        "message": TEXTS,
    }
)
POLLS = st.lists(
    st.tuples(st.lists(REPORTS, min_size=1, max_size=8), st.none() | TEXTS, st.none() | TEXTS), max_size=4
)


def integers(value: Any) -> list[int]:
    if isinstance(value, dict):
        return [each for inner in value.values() for each in integers(inner)]
    if isinstance(value, list):
        return [each for inner in value for each in integers(inner)]
    return [value] if isinstance(value, int) else []


def check(status: StatusBuilder) -> None:
    written = status.patch()["status"]
    assert json_bytes(written) < BUDGET
    assert MegatronRecipeStatus.model_validate(written).wire() == written
    assert all(abs(each) <= INT64 for each in integers(written))
    assert all(len(each["message"]) <= LONGEST_MESSAGE_OF_KUBERNETES for each in written["conditions"])
    assert all(len(each.message.encode()) <= LONGEST_EVENT for each in status.events)
    assert all(len(each.reason) <= 128 for each in status.events)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(POLLS)
def test_whatever_pods_report_the_status_stays_within_its_size(polls: Any) -> None:
    run = Run()
    for reports, ended, waiting in polls:
        run.pass_time(5)
        parsed = {rank: ProgressReport.parse(each) for rank, each in enumerate(reports)}
        run.reading = ProgressReading(merge_reports(parsed), run.now)
        if ended is not None:
            run.ends = {"run-worker-0": PodEnd(ended, 1, node=f"node-{run.now}")}
            run.pass_time(2)
            run.replace_worker("Pending" if waiting is not None else "Running")
        if waiting is not None:
            run.pods[1]["status"]["conditions"] = [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": waiting}
            ]
        for _ in range(2):
            status = run.status()
            before = status.recovery
            update_status(status, run.snapshot())
            add_incident_events(status, before)
            update_ledger(status, run.snapshot())
            if status.changed():
                update_reported_times(status, run.reading)
            check(status)
            run.write(status)
        assert run.status().wire() == run.body["status"], "it is read as it was written"


def test_a_status_above_the_budget_that_another_version_wrote_is_written_again(run: Any) -> None:
    """Also that of a run that has ended, of which nothing else changes."""
    condition = {
        "type": "Failed",
        "status": "True",
        "reason": "JobFailed",
        "message": "x" * 110_000,
        "lastTransitionTime": timestamp(NOW),
    }
    run.body["status"] = {"phase": "Failed", "conditions": [condition]}
    status = run.status()
    assert status.changed()
    run.write(status)
    assert json_bytes(run.body["status"]) <= MAX_STATUS_BYTES
    assert not run.status().changed()


def test_many_long_warnings_of_many_pods_are_cut_to_a_few(run: Any) -> None:
    warnings = [{"reason": "R", "message": chr(0x4E00 + number) + "<" * 5000} for number in range(5000)]
    reports = {
        rank: ProgressReport.parse({"schema": 1, "phase": "training", "warnings": warnings[rank * 100 :]})
        for rank in range(8)
    }
    run.reading = ProgressReading(merge_reports(reports), run.now + 1)
    status = run.status()
    update_status(status, run.snapshot())
    assert len(status.current.warnings) == MAX_WARNINGS
    assert len(status.events) == MAX_WARNINGS
    assert json_bytes(status.patch()["status"]) < 20_000
    assert status.patch()["status"].get("omitted") is None


def test_a_status_that_is_too_large_loses_the_least_important_and_reports_it(run: Any) -> None:
    run.body["status"] = {
        "plan": {"notes": ["x" * 1000] * 50},
        "warnings": [{"reason": "R", "message": "x" * 1000}] * 60,
        "conditions": [],
    }
    written = within_budget(run.body["status"])
    assert written["omitted"] == ["plan.notes"]
    assert len(written["warnings"]) == 60
    assert within_budget(written) == written
    larger = {**written, "recovery": {"history": [{"number": n, "cause": "x" * 900} for n in range(90)]}}
    reduced = within_budget(larger)
    assert reduced["omitted"] == ["plan.notes", "warnings"]
    assert json_bytes(reduced) <= MAX_STATUS_BYTES


def test_the_largest_ledger_leaves_room_for_the_rest_of_the_status() -> None:
    worst = {"category": "schedule", "cause": "\u2028" * 20, "node": "n" * 253}
    mark = worst | {"time": "2027-01-15T08:00:00Z", "accelerators": 100_000}
    full = {"marks": [mark] * MAX_MARKS, "losses": [worst | {"seconds": 12345678.12}] * MAX_LOSSES}
    assert json_bytes(full) < MAX_STATUS_BYTES / 3
    assert json_bytes(worst["cause"]) - 2 == LONGEST_CAUSE


@given(
    st.dictionaries(st.sampled_from(["phase", "prepared", "job", "plan", "recovery", "conditions"]), TEXTS)
)
@settings(max_examples=30, deadline=None)
def test_a_status_that_no_cap_foresaw_is_cut_as_a_last_resort(texts: dict[str, str]) -> None:
    status = {
        "recovery": {
            "history": [{"number": number, "cause": "<" * 4000} for number in range(50)],
            "nodesAvoided": ["n" * 253] * 1000,
            "nodeFailures": {f"{number:0253}": 1 for number in range(1000)},
        },
        "checkpoint": {"contract": {f"k{number}": "v" * 5000 for number in range(100)}, "iteration": 7},
        "job": {"name": texts.get("job", ""), "hash": texts.get("prepared", "")},
        "phase": texts.get("phase", ""),
        "conditions": [{"type": f"T{number}", "message": "<" * 32768} for number in range(30)],
    }
    written = within_budget(status)
    assert json_bytes(written) < BUDGET
    assert written["checkpoint"]["iteration"] == 7
    assert written["recovery"]["history"][-1]["number"] == 49
    assert "everything" in written["omitted"]


def test_measured_memory_and_crossings_give_way_early() -> None:
    crossing = {"level": "l" * 60, "bytes": 1, "seconds": 1.0}
    group = {"group": "TP", "size": 8, "level": "node", "crossings": [crossing] * 18, "seconds": 1.0}
    stages = [{"stage": each, "rank": each, "bytes": 10**9 + each % 100} for each in range(128)]
    memory = {"job": "hash", "layout": "TP 1", "stages": stages}
    status = {"plan": {"communication": [group] * 8}, "memory": memory, "warnings": [{"message": "w"}] * 3}
    full = json_bytes(status)
    fill = {"phase": "p" * (MAX_STATUS_BYTES - full + 5000)}
    written = within_budget(status | fill)
    assert written["omitted"] == ["plan.communication.crossings"]
    assert "crossings" not in written["plan"]["communication"][0]
    assert written["memory"] == memory
    fill = {"phase": "p" * (MAX_STATUS_BYTES - full + 15_000)}
    written = within_budget(status | fill)
    assert written["omitted"] == ["plan.communication.crossings", "memory"]
    assert written["memory"] == memory | {"stages": [stages[99]]}
    assert len(written["warnings"]) == 3
    assert within_budget(written) == written


def test_what_was_omitted_is_reported_until_the_spec_changes(run: Any) -> None:
    run.body["status"] = {"observedGeneration": 1, "omitted": ["plan.notes"]}
    status = run.status()
    status.observe_generation()
    assert status.current.omitted == ["plan.notes"]
    run.body["metadata"]["generation"] = 2
    status = run.status()
    status.observe_generation()
    assert status.current.omitted is None


def test_the_nodes_whose_failures_are_counted_are_bounded(run: Any) -> None:
    recovery = run.status().recovery
    for number in range(MAX_NODES):
        for _ in range(2):
            recovery = add_evidence(recovery, f"node-{number}", NODE_LOST, "x" * 5000, run.now)
    for number in range(1000):
        recovery = add_evidence(recovery, f"other-{number}", NODE_LOST, "x" * 5000, run.now)
    assert len(recovery.node_failures) == len(recovery.node_evidence) == MAX_NODES
    assert recovery.node_failures["other-999"] == 1
    assert sum(name.startswith("node-") for name in recovery.node_failures) == MAX_NODES - 1


@given(TEXTS, st.integers(0, 5000))
def test_a_text_is_cut_to_the_longest_beginning_that_fits(text: str, most: int) -> None:
    shorter = cut(text, most)
    assert text.startswith(shorter)
    assert json_bytes(shorter) - 2 <= most
    if shorter != text:
        assert json_bytes(text[: len(shorter) + 1]) - 2 > most


@pytest.mark.parametrize(
    ("text", "size"),
    [("x", 1), ("é", 2), ("😀", 4), ("<", 6), ("\u2028", 6), ("\ud800", 1), ('"', 2), ("\x00", 6)],
)
def test_bytes_are_counted_as_go_writes_them(text: str, size: int) -> None:
    """Half of a surrogate pair becomes a question mark, as it is cut."""
    assert json_bytes([text, 2**70]) == size + len('["",]') + len(str(2**70))
    assert json_bytes([text]) == size + len('[""]')


@pytest.mark.parametrize("letter", ["x", "😀", "<"])
def test_conditions_and_events_are_cut_in_bytes(run: Any, letter: str) -> None:
    status = run.status()
    status.fail(Reason.JOB_FAILED, letter * 100_000)
    failed = status.condition(Condition.FAILED)
    assert 4096 - 12 < json_bytes(failed.message) - 2 <= 4096
    assert 1024 - 4 < len(status.events[0].message.encode()) <= 1024
