"""The progress report of a pod, from rank events to its HTTP endpoints."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace

import pytest
from megatron_contract.progress import PROGRESS_SCHEMA, ProgressReport, ReportedEvaluation
from megatron_trainer.telemetry.iteration import IterationRecord
from megatron_trainer.telemetry.rank_failure import RankFailure
from megatron_trainer.telemetry.reporter import FINISHING_SAVE
from megatron_trainer.telemetry.run_journal import RunSummary
from megatron_trainer.telemetry.server import GAUGES, ProgressServer
from megatron_trainer.telemetry.status import Status

ITERATION = {
    "event": "iteration",
    "rank": 0,
    "generation": 2,
    "iteration": 7,
    "trainIters": 20,
    "lmLoss": 2.5,
    "learningRate": 1e-3,
    "stepSeconds": 0.2,
    "tokensPerSecond": 1000.0,
    "tflopsPerGpu": 0.5,
    "consumedSamples": 56,
}


@pytest.fixture
def status() -> Status:
    status = Status(node_rank=1, train_iters=20)
    status.start_generation(generation=2, resumed_from=5)
    return status


def test_unknown_values_are_null() -> None:
    fields = Status(node_rank=1, train_iters=20).report.to_json()
    assert fields["schema"] == PROGRESS_SCHEMA == 1
    assert (fields["phase"], fields["nodeRank"], fields["trainIters"]) == ("starting", 1, 20)
    assert [fields[name] for name in ("iteration", "lmLoss", "checkpointTime", "resumedFrom")] == [None] * 4


def test_an_iteration_is_reported_with_all_its_metrics(status: Status) -> None:
    status.apply(ITERATION)
    fields = status.report.to_json()
    assert fields["phase"] == "training"
    assert (fields["generation"], fields["resumedFrom"]) == (2, 5)
    assert {name: fields[name] for name in ITERATION if name in fields} == {
        name: value for name, value in ITERATION.items() if name in fields
    }


@pytest.mark.parametrize(("checkpoint", "done"), [(5, 5), (None, 0)])
def test_a_new_generation_has_done_the_iterations_of_its_checkpoint_and_has_no_loss_yet(
    checkpoint: int | None, done: int, status: Status
) -> None:
    assert status.report.iteration is None, "nothing is known before the first iteration of this pod"
    status.apply(ITERATION)
    status.start_generation(generation=3, resumed_from=checkpoint)
    report = status.report
    assert (report.iteration, report.lm_loss, report.learning_rate) == (done, None, None)
    status.apply({"event": "phase", "rank": 0, "generation": 3, "phase": "training"})
    status.apply(ITERATION | {"generation": 3, "iteration": 6, "lmLoss": 2.75})
    assert (status.report.iteration, status.report.lm_loss) == (6, 2.75)


@pytest.mark.parametrize("event", [{"event": "busy", "doing": "packing samples"}, {"event": "pulse"}])
def test_a_rank_that_is_busy_or_evaluates_changes_the_time_of_the_report_alone(
    event: dict[str, str], status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = status.report
    monkeypatch.setattr("megatron_trainer.telemetry.status._now", lambda: "2126-01-01T00:00:00.000Z")
    status.apply({"rank": 0, "generation": 2, **event})
    assert status.report == replace(before, updated_at="2126-01-01T00:00:00.000Z")


def test_an_asynchronous_save_that_is_finished_between_steps_is_a_save(status: Status) -> None:
    status.apply(ITERATION)
    phases = []
    for event in ({"event": "busy", "doing": FINISHING_SAVE}, {"event": "free"}):
        status.apply({"rank": 0, "generation": 2, **event})
        phases.append(status.report.phase)
    assert phases == ["saving", "training"]


@pytest.mark.parametrize("phase", ["saving", "evaluating"])
def test_an_earlier_save_that_is_finished_meanwhile_ends_no_other_phase(phase: str, status: Status) -> None:
    status.apply({"event": "phase", "rank": 0, "generation": 2, "phase": phase})
    for event in ({"event": "busy", "doing": FINISHING_SAVE}, {"event": "free"}):
        status.apply({"rank": 0, "generation": 2, **event})
    assert status.report.phase == phase


def test_the_latest_iteration_has_the_metrics_of_the_event(status: Status) -> None:
    assert status.latest_iteration() is None
    status.apply(ITERATION | {"time": 100.0})
    assert status.latest_iteration() == IterationRecord.from_json(ITERATION | {"time": 100.0})


def test_events_of_an_earlier_generation_are_dropped(status: Status) -> None:
    status.apply(ITERATION | {"generation": 1})
    assert status.report.iteration is None


def test_a_rank_without_the_loss_does_not_reset_it(status: Status) -> None:
    status.apply(ITERATION)
    status.apply(ITERATION | {"lmLoss": None})
    assert status.report.lm_loss == 2.5
    status.apply(ITERATION | {"lmLoss": None, "iteration": 8})
    assert status.report.lm_loss is None, "the loss of an earlier iteration is not reported for this one"


def test_iterations_repeated_after_a_restart_are_reported(status: Status) -> None:
    status.apply(ITERATION)
    status.start_generation(generation=3, resumed_from=5)
    status.apply(ITERATION | {"generation": 3, "iteration": 6})
    assert status.report.iteration == 6


@pytest.mark.parametrize("phase", ["saving", "evaluating"])
def test_an_iteration_from_another_pod_does_not_end_what_ranks_do_after_it(
    status: Status, phase: str
) -> None:
    status.apply(ITERATION | {"lmLoss": None})
    status.apply({"event": "phase", "rank": 0, "generation": 2, "phase": phase})
    status.set_iteration(IterationRecord.from_json(ITERATION | {"time": 100.0}))
    assert (status.report.phase, status.report.lm_loss) == (phase, 2.5)
    status.apply(ITERATION | {"iteration": 8})
    assert status.report.phase == "training"


def test_failed_events_are_kept_until_the_next_generation(status: Status) -> None:
    status.apply({"event": "failed", "rank": 3, "generation": 2, "exitCode": 67, "message": "lm loss is nan"})
    assert status.failures() == {3: RankFailure(67, "lm loss is nan")}
    status.start_generation(generation=3, resumed_from=5)
    assert status.failures() == {}


def test_the_checkpoint_time_is_rfc3339(status: Status) -> None:
    status.set_checkpoint(5, 1_700_000_000.0)
    assert status.report.checkpoint_time == "2023-11-14T22:13:20Z"


def test_the_seconds_of_saves_and_evaluations_are_those_of_node_0(status: Status) -> None:
    status.set_run(RunSummary((), 1.0, 2.0, save_seconds=3.5, evaluate_seconds=0.5))
    assert (status.report.save_seconds, status.report.evaluate_seconds) == (3.5, 0.5)


def test_evaluations_are_those_of_node_0(status: Status) -> None:
    all_of_them = (ReportedEvaluation(20, 2.0), ReportedEvaluation(30, 2.125))
    status.set_run(
        RunSummary((), 1.0, 2.0, None, None, None, None, None, 30, 2.125, 20, 2.0, evaluations=all_of_them)
    )
    report = status.report
    assert report.evaluations == all_of_them
    assert (report.validation_iteration, report.validation_loss) == (30, 2.125)
    assert (report.best_validation_iteration, report.best_validation_loss) == (20, 2.0)


def test_a_warning_is_replaced_and_cleared_by_its_reason(status: Status) -> None:
    status.warn("CheckpointVolumeLow", "2 GiB free")
    status.warn("CheckpointVolumeLow", "1 GiB free")
    assert [warning.message for warning in status.report.warnings] == ["1 GiB free"]
    status.set_run(RunSummary(incidents=(), useful_seconds=1.0, first_started_at=2.0))
    assert len(status.report.warnings) == 1, "a summary without warnings keeps those of the pod"
    status.warn("CheckpointVolumeLow", None)
    assert status.report.warnings == ()


def test_a_warning_has_no_value_of_a_secret(status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGATRON_SECRET_VARIABLES", "PATH_OF_KEYS")
    monkeypatch.setenv("PATH_OF_KEYS", "/checkpoints/hunter2-keys")
    status.warn("CheckpointVolumeNotWritable", "cannot write /checkpoints/hunter2-keys/x")
    assert [warning.message for warning in status.report.warnings] == ["cannot write <value of a Secret>/x"]


@pytest.fixture
def url(status: Status) -> Iterator[str]:
    server = ProgressServer(0, lambda: status.report)
    server.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def fetch(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        return str(answer.read().decode())


def test_progress_is_served_as_json(status: Status, url: str) -> None:
    status.apply(ITERATION)
    assert ProgressReport.parse(json.loads(fetch(f"{url}/progress"))) == status.report


def test_a_loss_that_is_not_finite_is_null(status: Status, url: str) -> None:
    status.apply(ITERATION | {"lmLoss": float("nan"), "learningRate": float("inf")})
    fields = json.loads(fetch(f"{url}/progress"))
    assert (fields["lmLoss"], fields["learningRate"]) == (None, None)


def test_every_gauge_is_a_field_of_the_progress_report() -> None:
    assert set(GAUGES) <= set(ProgressReport.__dataclass_fields__)


def test_progress_is_served_as_metrics(status: Status, url: str) -> None:
    status.apply(ITERATION)
    status.set_checkpoint(5, 1_700_000_000.0)
    metrics = fetch(f"{url}/metrics")
    assert 'megatron_lm_loss{node_rank="1"} 2.5' in metrics
    assert 'megatron_checkpoint_timestamp_seconds{node_rank="1"} 1.7e+09' in metrics
    assert 'phase="training"' in metrics


def test_an_unknown_path_is_refused_with_the_known_ones(url: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refusal:
        fetch(f"{url}/elsewhere")
    assert refusal.value.code == 404
    assert b"/progress" in refusal.value.read()
