"""What `make bench-fleet` reports of each run, its ledger and the operator's decisions."""

import csv
from pathlib import Path
from typing import Any

import pytest
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.time_ledger import State, advance, open_ledger

from bench.fleet_plan import plan_runs
from bench.fleet_report import Measured, percentile, table
from bench.fleet_runs import rows, run_times, write_csv
from bench.fleet_trainer import Trainer
from bench.operator_metrics import DECISIONS, by_label

CREATED = 1_800_000_000.0
COMPLETE = CREATED + 100
REPORTED = CREATED + 115
DECIDED = f"""# TYPE {DECISIONS} counter
{DECISIONS}{{decision="resize"}} 3.0
{DECISIONS}{{decision="create_job"}} 203.0
megatron_operator_reconciles_total{{outcome="done"}} 9.0
"""


def recipe(ledger_ends: float = COMPLETE) -> dict[str, Any]:
    """A run whose job was complete after 100 s, which its status reported 15 s later."""
    created = timestamp(CREATED)
    ledger = advance(
        open_ledger(created, State("prepare")), State("train", accelerators=8), CREATED + 20, [], ended=False
    )
    ledger = advance(ledger, State("idle", "Succeeded"), ledger_ends, [], ended=True)
    condition = {"type": "Succeeded", "status": "True", "reason": "", "message": ""}
    return {
        "metadata": {"name": "run", "namespace": "bench", "creationTimestamp": created},
        "status": {
            "phase": "Succeeded",
            "recovery": {"restarts": 2},
            "conditions": [condition | {"lastTransitionTime": timestamp(REPORTED)}],
            "ledger": ledger.model_dump(by_alias=True),
        },
    }


JOB = {"metadata": {"name": "run"}, "status": {"completionTime": timestamp(COMPLETE)}}


def trainers(*shares: float) -> list[Trainer]:
    """Runs of one class that trained for these shares of their time."""
    plan = next(each for each in plan_runs(20, 100, 14, 1) if each.kind == "small")
    found = []
    for share in shares:
        trainer = Trainer(plan, 1.0)
        trainer.trained, trainer.times.recovering = 1000 * share, 1000 * (1 - share)
        found.append(trainer)
    return found


def measured(played: list[Trainer], **of: Any) -> Measured:
    known: dict[str, Any] = {
        "seconds": 100.0, "recipes": {}, "jobs": {}, "reconciles": 900.0, "failed_reconciles": 0.0,
        "decisions": {}, "writes": 0, "reads": 0, "deletions": {}, "cores": 0.1, "rss": 1, "pods_left": [],
        "errors": [],
    }  # fmt: skip
    return Measured(trainers=played, **(known | of))


def test_a_percentile_is_the_value_that_a_share_of_the_runs_does_not_exceed() -> None:
    values = [float(n) for n in range(1, 11)]
    assert [percentile(values, share) for share in (0.1, 0.5, 0.9, 1.0)] == [1.0, 5.0, 9.0, 10.0]
    assert percentile([3.0], 0.1) == 3.0


def test_the_table_has_the_distribution_of_the_goodput_of_a_class() -> None:
    lines = table(measured(trainers(*(n / 100 for n in range(81, 91)))))
    (small,) = (line for line in lines if line.startswith("| small |"))
    assert small.endswith("| 85.50% / 81.00% | 81.00% / 85.00% / 89.00% |")


def test_deletions_of_pods_are_reported_by_the_short_name_of_the_user() -> None:
    deletions = {"system:serviceaccount:kubeflow:training-operator": 1200, "admin": 3}
    lines = table(measured(trainers(0.9), deletions=deletions))
    assert "| deletions of pods, by user | training-operator 1,200, admin 3 |" in lines
    assert "| deletions of pods, by user | none |" in table(measured(trainers(0.9)))


def test_the_end_of_a_run_is_that_of_its_job_as_in_its_ledger() -> None:
    times = run_times(recipe(), JOB)
    assert times is not None
    assert (times.wall, times.ledger, times.difference, times.reported_after) == (100.0, 100.0, 0.0, 15.0)


def test_a_ledger_that_does_not_reach_the_end_of_the_job_is_reported() -> None:
    lines = table(measured(trainers(0.9), recipes={"run": recipe(COMPLETE - 7)}, jobs={"run": JOB}))
    assert "| largest difference of a run's sum from its wall clock | 7.0 |" in lines
    assert "| longest from the end of a run's job until its status reports it | 15 |" in lines


def test_a_run_without_a_job_that_is_complete_ends_with_its_condition() -> None:
    times = run_times(recipe(REPORTED), {"status": {}})
    assert times is not None
    assert (times.wall, times.difference, times.reported_after) == (115.0, 0.0, 0.0)
    assert run_times(recipe() | {"status": {"phase": "Training"}}, None) is None


def test_each_run_has_a_row_in_the_file(tmp_path: Path) -> None:
    ended, trains = trainers(0.9, 0.5)
    found = rows([ended, trains], {ended.plan.name: recipe()}, {ended.plan.name: JOB})
    write_csv(tmp_path / "runs.csv", found)
    with (tmp_path / "runs.csv").open() as file:
        written = list(csv.DictReader(file))
    assert [row["goodput"] for row in written] == ["0.90000", "0.50000"]
    first = written[0]
    assert (first["class"], first["restarts"], first["useful_hours"]) == ("small", "2", "0.250")
    assert (first["wall_seconds"], first["ledger_seconds"]) == ("100.0", "100.00")


def test_a_run_that_has_not_ended_has_a_row_without_times_of_its_end() -> None:
    (row,) = rows(trainers(0.5), {}, {})
    assert (row["phase"], row["wall_seconds"], row["ledger_seconds"]) == ("", "", "")


def test_decisions_are_read_by_kind_and_reported_by_the_second() -> None:
    decisions = by_label(DECIDED, DECISIONS)
    assert list(decisions.items()) == [("create_job", 203.0), ("resize", 3.0)]
    lines = table(measured(trainers(0.9), decisions=decisions))
    assert "| decisions | 206, 2.06 a second: create_job 203, resize 3 |" in lines
    assert "| reconciles | 900, 9.0 a second |" in lines


@pytest.mark.parametrize("metrics", ["", "megatron_operator_reconciles_total 3.0\n"])
def test_an_operator_without_decisions_has_none(metrics: str) -> None:
    assert by_label(metrics, DECISIONS) == {}
