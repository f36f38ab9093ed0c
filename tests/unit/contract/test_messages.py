"""Messages between operator and trainer: JSON both ways, and what a reader does with unexpected input."""

import ast
import json
import sys
from pathlib import Path
from typing import Any

import megatron_contract
import pytest
from megatron_contract.exit_codes import FIRST_RETRYABLE_EXIT_CODE, REASONS, ExitCode
from megatron_contract.incident import ReportedIncident
from megatron_contract.preparation import PreparationResult
from megatron_contract.progress import (
    PROGRESS_SCHEMA,
    ProgressReport,
    ReportedMemory,
    ReportedWarning,
    fullest_ranks,
)
from megatron_contract.termination import TerminationMessage
from megatron_contract.wire import Message, WireError, camel_case

INCIDENT: dict[str, Any] = {
    "generation": 2,
    "kind": "rank",
    "nodeRank": 1,
    "rank": 3,
    "cause": "rank 3 was killed by SIGKILL",
    "iteration": 10,
    "resumedFrom": 8,
    "lastStepAt": 18.5,
    "detectedAt": 20.0,
    "metAt": 31.0,
    "loadedAt": 33.0,
    "firstStepAt": 40.0,
    "caughtUpAt": None,
}
PROGRESS: dict[str, Any] = {
    "schema": 1,
    "phase": "training",
    "nodeRank": 0,
    "generation": 2,
    "rankRestarts": 1,
    "iteration": 12,
    "trainIters": 200,
    "lmLoss": 6.25,
    "learningRate": 0.003,
    "stepSeconds": 0.25,
    "tokensPerSecond": 2048.0,
    "tflopsPerGpu": 0.5,
    "consumedSamples": 96,
    "checkpointIteration": 8,
    "checkpointTime": "2026-01-01T00:00:00Z",
    "resumedFrom": 8,
    "startedAt": "2026-01-01T00:00:00.000Z",
    "updatedAt": "2026-01-01T00:00:30.000Z",
    "message": "rank 3 was killed by SIGKILL (restart 1 of 3 without a new checkpoint)",
    "incidents": [INCIDENT],
    "warnings": [{"reason": "CheckpointVolumeLow", "message": "1.0 GiB free"}],
    "stragglers": [
        {
            "rank": 9,
            "nodeRank": 1,
            "iteration": 40,
            "slowdown": 1.75,
            "ownSeconds": 0.875,
            "peerSeconds": 0.5,
        }
    ],
    "memory": [{"rank": 2, "stage": 0, "bytes": 70}, {"rank": 5, "stage": 1, "bytes": 60}],
    "preparation": {
        "documents": 7,
        "bytesDone": 50,
        "bytesTotal": 200,
        "bytesPerSecond": 2.5,
        "secondsLeft": 60.0,
        "step": "check",
    },
    "conversion": {
        "step": "audit",
        "tensorsDone": 3,
        "tensorsTotal": 9,
        "bytesDone": 60,
        "bytesTotal": 240,
    },
    "usefulSeconds": 2.5,
    "firstStartedAt": 1767225600.0,
    "saveSeconds": 12.5,
    "evaluateSeconds": 3.0,
    "validationIteration": 30,
    "validationLoss": 2.125,
    "bestValidationIteration": 20,
    "bestValidationLoss": 2.0,
    "evaluations": [{"iteration": 20, "loss": 2.0}, {"iteration": 30, "loss": 2.125}],
    "bestCheckpointIteration": 20,
    "bestCheckpointLoss": 2.0,
}
MESSAGES: list[Message] = [
    ProgressReport.from_json(PROGRESS),
    ProgressReport(schema=PROGRESS_SCHEMA, phase="starting"),
    ReportedIncident(generation=2, detected_at=20.0),
    ReportedWarning("CheckpointVolumeLow", "1.0 GiB free"),
    TerminationMessage.of(ExitCode.HANG, "rank 3 hangs", node_rank=1, rank=3, iteration=7),
    PreparationResult(3, 100, 300, "/data/code_text_document", 200, 80),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives_json(message: Message) -> None:
    assert type(message).from_json(json.loads(json.dumps(message.to_json()))) == message


def test_the_progress_report_has_every_field_of_the_wire_format() -> None:
    assert ProgressReport.parse(PROGRESS).to_json() == PROGRESS


def test_unknown_fields_are_ignored() -> None:
    newer = PROGRESS | {"powerWatts": 700, "incidents": [INCIDENT | {"severity": "high"}]}
    assert ProgressReport.parse(newer).to_json() == PROGRESS


@pytest.mark.parametrize("value", [None, [], "progress", 3])
def test_a_message_must_be_an_object(value: object) -> None:
    with pytest.raises(WireError, match="ProgressReport: expected an object, got"):
        ProgressReport.parse(value)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"iteration": "12"}, "ProgressReport.iteration: expected int, got '12'"),
        ({"iteration": True}, "ProgressReport.iteration: expected int, got True"),
        ({"iteration": 1.5}, "ProgressReport.iteration: expected int, got 1.5"),
        ({"lmLoss": "nan"}, "ProgressReport.lmLoss: expected float, got 'nan'"),
        ({"lmLoss": True}, "ProgressReport.lmLoss: expected float, got True"),
        ({"phase": None}, "ProgressReport.phase: expected str, got None"),
        ({"incidents": {}}, r"ProgressReport.incidents: expected a list, got \{\}"),
        ({"incidents": [INCIDENT, 3]}, r"ProgressReport.incidents\[1\]: expected an object, got 3"),
        (
            {"incidents": [INCIDENT | {"metAt": "now"}]},
            r"ProgressReport.incidents\[0\].metAt: expected float, got 'now'",
        ),
    ],
)
def test_a_wrong_type_is_reported_with_field_and_value(changed: dict[str, Any], text: str) -> None:
    with pytest.raises(WireError, match=f"^{text}$"):
        ProgressReport.parse(PROGRESS | changed)


def test_a_missing_required_field_is_named() -> None:
    without = {name: value for name, value in INCIDENT.items() if name not in ("generation", "detectedAt")}
    with pytest.raises(WireError, match=r"^ReportedIncident: missing generation, detectedAt$"):
        ReportedIncident.from_json(without)


def test_a_whole_number_is_accepted_where_a_float_is_expected() -> None:
    loss = ProgressReport.parse(PROGRESS | {"lmLoss": 6}).lm_loss
    assert (loss, type(loss)) == (6.0, float)


def test_another_schema_version_is_refused() -> None:
    with pytest.raises(WireError, match="unsupported progress schema 2; this version reads 1"):
        ProgressReport.parse(PROGRESS | {"schema": 2})


def test_field_names_are_camel_case_on_the_wire() -> None:
    assert camel_case("tflops_per_gpu") == "tflopsPerGpu"
    assert camel_case("phase") == "phase"


def test_every_exit_code_has_its_own_reason() -> None:
    assert set(REASONS) == set(ExitCode)
    assert len(set(REASONS.values())) == len(REASONS)


def test_exit_codes_from_128_on_are_retryable() -> None:
    assert FIRST_RETRYABLE_EXIT_CODE == 128
    assert [code.name for code in ExitCode if code.retryable] == [
        "WORKER_DIED",
        "PEER_LOST",
        "HANG",
        "TERMINATED",
    ]


def test_only_a_finished_run_is_completed() -> None:
    assert [code for code in ExitCode if TerminationMessage.of(code, "").completed] == [ExitCode.OK]


@pytest.mark.parametrize("letter", ["x", "ß", "語"])
def test_a_long_termination_message_stays_below_the_limit_of_kubelet(letter: str) -> None:
    message = TerminationMessage.of(ExitCode.USAGE, letter * 10_000)
    assert set(message.message) == {letter}
    assert len(json.dumps(message.to_json(), ensure_ascii=False).encode()) < 4096


@pytest.mark.parametrize("text", ["", "Segmentation fault", "[1]", "3", '{"reason": 5}', '{"message": "torn'])
def test_a_termination_log_of_another_program_is_not_parsed(text: str) -> None:
    assert TerminationMessage.parse(text) is None


def test_the_message_of_a_preparation_is_a_termination_message() -> None:
    result = PreparationResult(3, 100, 300, "/data/code_text_document", 200, 80)
    message = TerminationMessage.of(ExitCode.OK, "prepared")
    assert TerminationMessage.parse(json.dumps(message.to_json() | result.to_json())) == message


def test_the_package_imports_only_the_standard_library() -> None:
    (folder,) = megatron_contract.__path__
    for path in Path(folder).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            roots = {name.split(".")[0] for name in names}
            assert roots <= sys.stdlib_module_names | {"megatron_contract"}, path.name


def test_of_each_stage_the_rank_with_the_most_memory_is_the_fullest() -> None:
    ranks = [ReportedMemory(5, 1, 60), ReportedMemory(1, 0, 50), ReportedMemory(2, 0, 70)]
    ranks += [ReportedMemory(4, 1, 60), ReportedMemory(0, 0, 70)]
    assert fullest_ranks(ranks) == (ReportedMemory(0, 0, 70), ReportedMemory(4, 1, 60))


def test_a_report_of_version_0_2_has_no_memory() -> None:
    assert ProgressReport.parse({"schema": 1, "phase": "training"}).memory == ()
