"""The run journal: incidents and useful time, from the reports and the progress file to the file beside the
checkpoints."""

import itertools
import json
from pathlib import Path

import pytest
from megatron_contract.environment import JOURNAL_FILE, PROGRESS_FILE, VALIDATION_FILE
from megatron_contract.limits import MAX_EVALUATIONS, MAX_INCIDENTS
from megatron_trainer.telemetry.incidents import FailureKind, FailureReport
from megatron_trainer.telemetry.iteration import IterationRecord
from megatron_trainer.telemetry.run_journal import RunJournal

from tests.unit.trainer.checkpoints.test_selection import fail_reads

KILLED = FailureReport(FailureKind.RANK, "rank 3 was killed by SIGKILL", 1, 3, detected_at=20.0)


def record(iteration: int, generation: int = 1, time: float | None = None, seconds: float = 2.0) -> str:
    fields = {
        "iteration": iteration,
        "generation": generation,
        "lmLoss": 1.0,
        "stepSeconds": seconds,
        "time": float(iteration) if time is None else time,
    }
    return json.dumps(fields) + "\n"


def write(save: Path, *lines: str) -> None:
    save.mkdir(exist_ok=True)
    with (save / PROGRESS_FILE).open("a") as file:
        file.writelines(lines)


def open_journal(save: Path | None) -> RunJournal:
    return RunJournal(save, log=lambda _text: None)


def restart(journal: RunJournal, generation: int, resumed_from: int | None = None) -> None:
    journal.start_generation(generation, KILLED, resumed_from, latest=None, met_at=31.0)


def test_an_incident_has_the_times_of_its_phases(tmp_path: Path) -> None:
    write(tmp_path, record(9), record(10, time=18.5))
    journal = open_journal(tmp_path)
    restart(journal, 2, resumed_from=8)
    journal.record_loaded(2, 33.0)
    journal.record_loaded(2, 32.0)
    write(tmp_path, record(9, 2, 40.0), record(10, 2, 41.0))
    journal.update(None)
    (incident,) = journal.summary().incidents
    assert incident.caught_up_at is None
    write(tmp_path, record(11, 2, 42.0), record(12, 2, 43.0))
    journal.update(None)
    (incident,) = journal.summary().incidents
    assert incident.to_json() == {
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
        "caughtUpAt": 42.0,
    }


def test_the_journal_outlives_its_pod(tmp_path: Path) -> None:
    write(tmp_path, record(1, time=100.0))
    first = open_journal(tmp_path)
    assert first.summary().first_started_at == 98.0
    restart(first, 2)
    first.policy["skip"] = [7]
    first.set_pending(FailureReport(FailureKind.STOP, "SIGTERM", 0, detected_at=50.0))
    second = open_journal(tmp_path)
    assert second.summary().incidents == first.summary().incidents
    assert second.summary().first_started_at == 98.0
    assert (second.generation, second.policy) == (2, {"skip": [7]})
    pending = second.pending
    assert pending is not None
    assert (pending.kind, pending.detected_at) == (FailureKind.STOP, 50.0)
    second.start_generation(3, pending, resumed_from=None, latest=None, met_at=31.0)
    assert open_journal(tmp_path).pending is None


def test_the_file_has_the_fields_of_its_schema(tmp_path: Path) -> None:
    write(tmp_path, record(1, time=100.0))
    restart(open_journal(tmp_path), 2)
    stored = json.loads((tmp_path / JOURNAL_FILE).read_text())
    assert stored["schema"] == 1
    assert sorted(stored) == ["firstStartedAt", "generation", "incidents", "pending", "policy", "schema"]


def test_only_the_newest_incidents_are_kept(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    for generation in range(2, MAX_INCIDENTS + 5):
        restart(journal, generation)
    generations = [incident.generation for incident in journal.summary().incidents]
    assert generations == list(range(5, MAX_INCIDENTS + 5))


def test_the_time_since_the_last_step_counts_only_for_the_first_incident_after_it(tmp_path: Path) -> None:
    write(tmp_path, record(10))
    journal = open_journal(tmp_path)
    restart(journal, 2, resumed_from=8)
    restart(journal, 3, resumed_from=8)
    assert [incident.last_step_at for incident in journal.summary().incidents] == [10.0, None]


@pytest.mark.parametrize("content", ["", "{", "[]", "[" * 100_000, '{"incidents": 3', '{"incidents": 3}'])
def test_an_unreadable_journal_does_not_stop_the_run(content: str, tmp_path: Path) -> None:
    (tmp_path / JOURNAL_FILE).write_text(content)
    assert open_journal(tmp_path).summary().incidents == ()


@pytest.mark.parametrize("name", [JOURNAL_FILE, PROGRESS_FILE])
def test_the_journal_is_not_begun_again_if_it_cannot_be_read_now(name: str, tmp_path: Path) -> None:
    fail_reads(tmp_path / name)
    with pytest.raises(OSError, match="Input/output error"):
        open_journal(tmp_path)


def test_a_generation_that_cannot_be_recorded_is_no_incident(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    fail_reads(tmp_path / VALIDATION_FILE)
    with pytest.raises(OSError, match="Input/output error"):
        restart(journal, 2)
    assert (journal.summary().incidents, journal.generation) == ((), 0)


def test_what_cannot_be_read_while_the_ranks_train_is_read_later(tmp_path: Path) -> None:
    write(tmp_path, record(1))
    journal = open_journal(tmp_path)
    restart(journal, 2)
    write(tmp_path, record(2, generation=2))
    (tmp_path / VALIDATION_FILE).write_text('{"iteration": 2, "lmLoss": 2.5}\n')
    for name in (PROGRESS_FILE, VALIDATION_FILE):
        (tmp_path / name).rename(tmp_path / f"{name}.kept")
        fail_reads(tmp_path / name)
    journal.update(None)
    (incident,) = journal.summary().incidents
    assert incident.caught_up_at is None
    for name in (PROGRESS_FILE, VALIDATION_FILE):
        (tmp_path / f"{name}.kept").replace(tmp_path / name)
    journal.update(None)
    found = journal.summary()
    assert found.incidents[0].caught_up_at == 2.0
    assert found.validation_loss == 2.5


def test_useful_seconds_are_those_of_iterations_that_were_kept(tmp_path: Path) -> None:
    write(tmp_path, *[record(i, seconds=1.0) for i in (1, 2, 3, 4)])
    journal = open_journal(tmp_path)
    assert journal.summary().useful_seconds == 4.0
    restart(journal, 2, resumed_from=2)
    assert journal.summary().useful_seconds == 2.0
    write(tmp_path, *[record(i, 2, seconds=1.5) for i in (3, 4, 5)])
    journal.update(None)
    assert journal.summary().useful_seconds == 6.5
    assert open_journal(tmp_path).summary().useful_seconds == 6.5


def test_seconds_in_saves_count_for_the_whole_run_also_where_iterations_were_discarded(
    tmp_path: Path,
) -> None:
    between = '{"iteration": %d, "generation": 1, "stepSeconds": 1.0, "time": 9.0, "%s": %f}\n'
    write(tmp_path, between % (2, "saveSeconds", 2.5), between % (4, "saveSeconds", 1.5))
    write(tmp_path, between % (5, "evaluateSeconds", 7.0), record(6))
    journal = open_journal(tmp_path)
    restart(journal, 2, resumed_from=2)
    for summary in (journal.summary(), open_journal(tmp_path).summary()):
        assert (summary.save_seconds, summary.evaluate_seconds) == (4.0, 7.0)


def test_the_last_and_the_best_evaluation_are_reported_and_a_repeated_one_replaces_the_former(
    tmp_path: Path,
) -> None:
    def evaluate(*losses: tuple[int, float]) -> None:
        with (tmp_path / VALIDATION_FILE).open("a") as file:
            file.writelines(f'{{"iteration": {at}, "lmLoss": {loss}, "time": 1.0}}\n' for at, loss in losses)

    journal = open_journal(tmp_path)
    assert journal.summary().validation_iteration is None
    evaluate((10, 2.5), (20, 2.0), (30, 2.125), (40, float("nan")))
    for each in (journal, open_journal(tmp_path)):
        found = each.summary()
        assert (found.validation_iteration, found.validation_loss) == (30, 2.125)
        assert (found.best_validation_iteration, found.best_validation_loss) == (20, 2.0)
    evaluate((20, 2.25))
    found = journal.summary()
    assert (found.validation_iteration, found.best_validation_iteration) == (20, 30)
    assert [(each.iteration, each.loss) for each in found.evaluations] == [(10, 2.5), (20, 2.25), (30, 2.125)]


@pytest.mark.parametrize("count", [1, 38, 39, 40, 41, 76, 77, 1000])
def test_of_many_evaluations_some_of_the_whole_run_are_reported_with_the_best_and_the_last(
    tmp_path: Path, count: int
) -> None:
    losses = {10 * n: 1.0 if n == 37 else 3.0 - n / 1000 for n in range(1, count + 1)}
    lines = [f'{{"iteration": {at}, "lmLoss": {loss}, "time": 1.0}}\n' for at, loss in losses.items()]
    (tmp_path / VALIDATION_FILE).write_text("".join(lines))
    found = {each.iteration: each.loss for each in open_journal(tmp_path).summary().evaluations}
    assert found.items() <= losses.items()
    assert {min(losses, key=lambda at: losses[at]), 10, 10 * count} <= found.keys()
    assert min(count, MAX_EVALUATIONS // 2) <= len(found) <= MAX_EVALUATIONS
    gaps = [after - before for before, after in itertools.pairwise(found)]
    assert max(gaps, default=10) <= max(10, 2 * 10 * count / (MAX_EVALUATIONS - 2))


def test_skipped_iterations_and_incomplete_lines_do_not_count(tmp_path: Path) -> None:
    write(tmp_path, record(1), "{torn\n", record(3), '{"iteration": 4, "unfinished')
    assert open_journal(tmp_path).summary().useful_seconds == 4.0


def test_without_a_checkpoint_directory_iterations_come_from_the_store() -> None:
    journal = open_journal(None)
    latest = IterationRecord(iteration=5, generation=1, time=15.0)
    journal.start_generation(2, KILLED, resumed_from=None, latest=latest, met_at=31.0)
    journal.update(IterationRecord(iteration=1, generation=2, time=25.0))
    journal.update(IterationRecord(iteration=6, generation=2, time=30.0))
    (incident,) = journal.summary().incidents
    assert (incident.iteration, incident.last_step_at) == (5, 15.0)
    assert (incident.first_step_at, incident.caught_up_at) == (25.0, 30.0)


def test_a_damaged_line_does_not_reserve_memory_for_the_iterations_that_it_names(tmp_path: Path) -> None:
    lines = [
        {"iteration": i, "generation": 1, "stepSeconds": 1.0, "time": 5.0} for i in (10**15, -3, 0, 1, 2)
    ]
    text = "\n".join(["[" * 100_000, *map(json.dumps, lines)]) + "\n"
    (tmp_path / PROGRESS_FILE).write_text(text)
    journal = RunJournal(tmp_path, print)
    assert journal.iteration == 2
    assert journal.summary().useful_seconds == 2.0
