"""How the result of a plain job on a row of the fault table is reported."""

from pathlib import Path

import pytest

from bench import plain_report
from bench.plain_report import Outcome, Results, asserted, ended, resumed, table
from bench.plain_rows import WHOLE_TABLE, left_out, select_rows
from testkit.faults.bridge_rows import BRIDGE_ROWS
from testkit.faults.rows import LAYOUTS, ROWS
from testkit.training_run import IterationRecord

KNOWN = {iteration: 10.0 / iteration for iteration in range(1, 31)}


def records(first: int, last: int, offset: float = 0.0) -> list[IterationRecord]:
    return [IterationRecord(n, 10.0 / n + offset, float(n), 0) for n in range(first, last + 1)]


def test_a_job_that_resumes_from_the_newest_intact_checkpoint_survives() -> None:
    found = resumed(records(21, 31), KNOWN, reached=30, least=20, seconds=41.2)
    assert found == Outcome("resumed", "resumes after 41 s, 10 iterations repeated")


def test_a_start_before_an_intact_checkpoint_is_a_rollback() -> None:
    found = resumed(records(1, 1), KNOWN, reached=30, least=20, seconds=20)
    assert found == Outcome("rolled back", "resumes from iteration 0 although checkpoint 20 is intact")


def test_repeated_iterations_with_another_loss_are_reported() -> None:
    found = resumed(records(21, 31, offset=0.001), KNOWN, reached=30, least=20, seconds=41.2)
    assert found.kind == "different losses"
    assert "from iteration 21 on" in found.text


def test_a_job_that_succeeds_early_is_reported_as_such() -> None:
    assert ended("Succeeded: done", 47, 100_000) == Outcome(
        "succeeded", "reported as Succeeded after iteration 47 of 100,000"
    )
    assert ended("Failed: 1 Master replica failed", 47, 100_000).kind == "failed"


def test_rows_that_need_this_operator_are_left_out_with_a_reason() -> None:
    names = set(left_out())
    assert "the operator is killed when the pod is gone" in names
    assert "a node is lost and the operator killed" in names
    assert "the training-operator is killed when a pod is gone" not in names
    assert names >= {row.name for row in LAYOUTS}, "these edit a recipe or read its status"
    assert names >= {row.name for row in BRIDGE_ROWS}
    assert names | {row.name for row in select_rows([])} == {row.name for row in WHOLE_TABLE}
    assert {row.name for row in select_rows(["tracker"])} == {r.name for r in ROWS if "tracker" in r.name}
    with pytest.raises(ValueError, match="no row has any of"):
        select_rows(["no such row"])


def test_the_operators_column_shows_what_its_row_asserts() -> None:
    by_name = {row.name: row for row in ROWS}
    damaged = asserted(by_name["the newest checkpoint's shard is torn"])
    assert damaged.startswith("resumes from the checkpoint before the damaged one within")
    assert "no incident is reported" in asserted(by_name["a rank is slow"])


def test_results_survive_an_interrupted_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_report, "DATA", tmp_path / "plain.yaml")
    monkeypatch.setattr(plain_report, "PAGE", tmp_path / "plain.md")
    plain_report.PAGE.write_text(f"before\n{plain_report.BEGIN}\nold\n{plain_report.END}\nafter\n")
    results = Results.read()
    row = ROWS[0]
    results.add(row.name, "exitcode", Outcome("stuck", "stuck: no new iteration in 120 s"))
    plain_report.write(results, ROWS, {"another": "no reason"})
    assert Results.read() == results
    assert Results.read().has(row.name, "exitcode")
    assert not Results.read().has(row.name, "onfailure")
    text = plain_report.PAGE.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert f"| {row.name} | {asserted(row)} | not run | stuck: no new iteration in 120 s |" in text
    assert "\nold\n" not in text


def test_the_table_counts_the_survived_faults() -> None:
    results = Results()
    results.add(ROWS[0].name, "exitcode", Outcome("resumed", "resumes after 40 s"))
    results.add(ROWS[1].name, "exitcode", Outcome("stuck", "stuck"))
    lines = table(results, ROWS[:2], {})
    assert "ExitCode: the job survives 1 of 2 faults." in lines


def test_rows_that_were_not_run_are_counted() -> None:
    results = Results()
    results.add(ROWS[0].name, "exitcode", Outcome("stuck", "stuck: no new iteration in 150 s"))
    lines = table(results, ROWS[:3], {ROWS[1].name: "no reason"})
    assert any(
        line.startswith("ExitCode: the job survives 0 of 1 faults") and line.endswith("Not run yet: 1.")
        for line in lines
    )
    assert any(
        line.startswith("OnFailure: the job survives 0 of 0 faults") and line.endswith("Not run yet: 2.")
        for line in lines
    )
