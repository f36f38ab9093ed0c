"""What interrupted the run, from several pods' reports to the book beside the checkpoints."""

import json
from pathlib import Path
from typing import Any

import pytest
from megatron_contract.environment import PROGRESS_FILE
from megatron_trainer.telemetry.incidents import Kind, Report, merge
from megatron_trainer.telemetry.run_journal import BOOK_FILE, INCIDENTS_KEPT, Book

KILLED = Report(Kind.RANK, "rank 3 was killed by SIGKILL", 1, 3, detected_at=20.0)
LOST_A_PEER = Report(Kind.POD, "rank 0: Connection closed by peer", detected_at=19.0)
REPLACED = Report(Kind.POD, "node 1 was replaced", 1, detected_at=30.0)


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


def book(save: Path | None) -> Book:
    return Book(save, log=lambda _text: None)


@pytest.mark.parametrize("order", [1, -1])
def test_who_only_lost_a_peer_adds_the_time_but_not_the_name(order: int) -> None:
    first, second = [KILLED, LOST_A_PEER][::order]
    merged = merge(first, second)
    assert (merged.kind, merged.cause, merged.node_rank, merged.rank) == (Kind.RANK, KILLED.cause, 1, 3)
    assert merged.detected_at == 19.0


def test_a_pod_that_ended_after_its_ranks_is_told_with_both_causes_in_order() -> None:
    merged = merge(KILLED, REPLACED)
    assert (merged.kind, merged.node_rank, merged.rank) == (Kind.POD, 1, 3)
    assert merged.cause == "rank 3 was killed by SIGKILL; node 1 was replaced"
    assert merge(merged, REPLACED) == merged


def test_a_report_survives_the_store() -> None:
    assert Report.from_json(json.loads(json.dumps(KILLED.to_json()))) == KILLED


def test_an_incident_has_the_times_of_its_phases(tmp_path: Path) -> None:
    write(tmp_path, record(9), record(10, time=18.5))
    kept = book(tmp_path)
    kept.begin(2, KILLED, resumed_from=8, told={}, met_at=31.0)
    kept.loaded(2, 33.0)
    kept.loaded(2, 32.0)
    write(tmp_path, record(9, 2, 40.0), record(10, 2, 41.0))
    kept.follow({})
    (incident,) = kept.public()["incidents"]
    assert incident["caughtUpAt"] is None
    write(tmp_path, record(11, 2, 42.0), record(12, 2, 43.0))
    kept.follow({})
    (incident,) = kept.public()["incidents"]
    assert incident == {
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


def test_the_book_outlives_the_pod_that_keeps_it(tmp_path: Path) -> None:
    write(tmp_path, record(1, time=100.0))
    first = book(tmp_path)
    assert first.public()["firstStartedAt"] == 98.0
    first.begin(2, KILLED, resumed_from=None, told={}, met_at=31.0)
    first.last_words(Report(Kind.STOP, "SIGTERM", 0, detected_at=50.0))
    second = book(tmp_path)
    assert second.public()["incidents"] == first.public()["incidents"]
    assert second.public()["firstStartedAt"] == 98.0
    assert second.generation == 2
    inherited = second.inherited()
    assert inherited is not None
    assert (inherited.kind, inherited.detected_at) == (Kind.STOP, 50.0)
    second.begin(3, inherited, resumed_from=None, told={}, met_at=31.0)
    assert book(tmp_path).inherited() is None


def test_only_the_newest_incidents_are_kept(tmp_path: Path) -> None:
    kept = book(tmp_path)
    for generation in range(2, INCIDENTS_KEPT + 5):
        kept.begin(generation, KILLED, resumed_from=None, told={}, met_at=31.0)
    generations = [each["generation"] for each in kept.public()["incidents"]]
    assert generations == list(range(5, INCIDENTS_KEPT + 5))


def test_time_before_an_incident_is_not_counted_twice_when_no_step_was_done_since(
    tmp_path: Path,
) -> None:
    write(tmp_path, record(10))
    kept = book(tmp_path)
    kept.begin(2, KILLED, resumed_from=8, told={}, met_at=31.0)
    kept.begin(3, KILLED, resumed_from=8, told={}, met_at=31.0)
    assert [each["lastStepAt"] for each in kept.public()["incidents"]] == [10.0, None]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"incidents": 3'])
def test_a_book_that_cannot_be_read_does_not_stop_the_run(content: str, tmp_path: Path) -> None:
    (tmp_path / BOOK_FILE).write_text(content)
    assert book(tmp_path).public()["incidents"] == []


def test_useful_seconds_are_those_of_iterations_that_were_not_done_again(tmp_path: Path) -> None:
    write(tmp_path, *[record(i, seconds=1.0) for i in (1, 2, 3, 4)])
    kept = book(tmp_path)
    assert kept.public()["usefulSeconds"] == 4.0
    kept.begin(2, KILLED, resumed_from=2, told={}, met_at=31.0)
    assert kept.public()["usefulSeconds"] == 2.0
    write(tmp_path, *[record(i, 2, seconds=1.5) for i in (3, 4, 5)])
    kept.follow({})
    assert kept.public()["usefulSeconds"] == 6.5
    assert book(tmp_path).public()["usefulSeconds"] == 6.5


def test_iterations_left_out_and_torn_lines_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path, record(1), "{torn\n", record(3), '{"iteration": 4, "unfinished')
    assert book(tmp_path).public()["usefulSeconds"] == 4.0


def test_without_a_checkpoint_directory_the_store_says_how_far_the_run_is() -> None:
    kept = book(None)
    told: dict[str, Any] = {"iteration": 5, "generation": 1, "time": 15.0}
    kept.begin(2, KILLED, resumed_from=None, told=told, met_at=31.0)
    kept.follow({"iteration": 1, "generation": 2, "time": 25.0})
    kept.follow({"iteration": 6, "generation": 2, "time": 30.0})
    (incident,) = kept.public()["incidents"]
    assert (incident["iteration"], incident["lastStepAt"]) == (5, 15.0)
    assert (incident["firstStepAt"], incident["caughtUpAt"]) == (25.0, 30.0)
