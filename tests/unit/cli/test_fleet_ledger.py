"""`megatron ledger` without a name: the sums over the ledgers of many runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron_operator.api.times import seconds, timestamp
from megatron_operator.cli.deleted_runs import NOT_COUNTED, UNKNOWN, deleted_runs
from megatron_operator.cli.fleet_ledger import fleet_ledger, left_out
from megatron_operator.cli.main import cli
from megatron_operator.cli.run_ledger import run_ledger
from megatron_operator.cli.weekly_ledger import EARLIER, weekly_ledger
from megatron_operator.lifecycle.time_ledger import CATEGORIES
from megatron_operator.lifecycle.usage_records import Records, RunUse, WeekUse

from tests.unit.lifecycle.test_ledger_state import PLAN

CREATED = "2026-01-01T00:00:00Z"
T0 = seconds(CREATED) or 0.0
NOW = T0 + 3600 * 1000


def recipe(namespace: str, name: str, status: dict[str, Any]) -> dict[str, Any]:
    metadata = {"namespace": namespace, "name": name, "creationTimestamp": CREATED}
    return {"metadata": metadata, "status": status}


def trains(hours: float, *, lost: float = 0.0, price: float | None = None) -> dict[str, Any]:
    """The status of a run that has trained on 16 accelerators, after loading for `lost` hours."""
    settled = {"load": 3600.0 * lost, "train": 3600.0 * hours}
    return {
        "phase": "Succeeded",
        "plan": PLAN.model_copy(update={"price_per_gpu_hour": price}).wire(),
        "ledger": {
            "settledAt": timestamp(T0 + 3600 * (hours + lost)),
            "seconds": settled,
            "acceleratorSeconds": {name: 16 * value for name, value in settled.items()},
        },
    }


RUNS = [
    recipe("vision", "vit", trains(10, lost=2, price=2.0)),
    recipe("nlp", "llama", trains(100, price=3.0)),
    recipe("nlp", "qwen", trains(25)),
    recipe("nlp", "waits", {"phase": "Pending"}),
]


def test_runs_add_up_by_namespace() -> None:
    found = fleet_ledger(RUNS, NOW, None)
    nlp, vision = found["namespaces"]
    assert (nlp["namespace"], nlp["runs"], nlp["gpuHours"], nlp["lostGpuHours"]) == ("nlp", 2, 2000.0, 0.0)
    assert (nlp["cost"], nlp["unpricedGpuHours"]) == (4800.0, 400.0)
    assert (vision["gpuHours"], vision["lostGpuHours"], vision["cost"]) == (192.0, 32.0, 384.0)
    assert vision["lostShare"] == pytest.approx(1 / 6, abs=1e-6)
    total = found["total"]
    assert (total["runs"], total["gpuHours"], total["cost"]) == (3, 2192.0, 5184.0)
    assert {each["category"]: each["gpuHours"] for each in total["categories"]} == {
        "load": 32.0,
        "train": 2160.0,
    }


def test_what_is_not_counted_is_named() -> None:
    found = fleet_ledger(RUNS, NOW, None)
    assert found["withoutLedger"] == ["nlp/waits"]
    assert found["notCounted"] == UNKNOWN.not_counted
    assert fleet_ledger([], NOW, None)["total"]["gpuHours"] == 0


def test_of_many_runs_without_a_ledger_the_first_are_named() -> None:
    pending = [recipe("nlp", f"run-{number:02}", {"phase": "Pending"}) for number in range(23)]
    first, last = left_out(fleet_ledger(pending, NOW, None))
    assert first.endswith("nlp/run-19 and 3 more.")
    assert last == UNKNOWN.not_counted


def test_a_given_price_is_that_of_every_run() -> None:
    total = fleet_ledger(RUNS, NOW, 1.0)["total"]
    assert (total["cost"], total["unpricedGpuHours"]) == (2192.0, 0.0)


def test_runs_add_up_by_namespace_and_week() -> None:
    """Settled time has its weeks in the status; the time since belongs to those in which it passes."""
    weeks = [
        {"week": "2025-12-29", "acceleratorSeconds": 3600.0 * 100, "lostAcceleratorSeconds": 3600.0 * 25},
        {"week": "2026-01-05", "acceleratorSeconds": 3600.0 * 92, "lostAcceleratorSeconds": 3600.0 * 7},
    ]
    status = trains(10, lost=2, price=2.0)
    status["ledger"]["weeks"] = weeks
    mark = {"time": "2026-01-11T23:00:00Z", "category": "train", "accelerators": 8}
    running = {"phase": "Training", "ledger": {"settledAt": "2026-01-11T23:00:00Z", "marks": [mark]}}
    until = seconds("2026-01-12T02:00:00Z") or 0.0
    fleet = [recipe("vision", "vit", status), recipe("vision", "two", running), recipe("nlp", "x", running)]
    found = weekly_ledger([*fleet, recipe("nlp", "waits", {"phase": "Pending"})], until, None)
    rows = [
        (each["week"], each["namespace"], each["runs"], each["gpuHours"], each["lostGpuHours"], each["cost"])
        for each in found["weeks"]
    ]
    assert rows == [
        ("2026-01-12", "nlp", 1, 16.0, 0.0, None),
        ("2026-01-12", "vision", 1, 16.0, 0.0, None),
        ("2026-01-05", "nlp", 1, 8.0, 0.0, None),
        ("2026-01-05", "vision", 2, 100.0, 7.0, 184.0),
        ("2025-12-29", "vision", 1, 100.0, 25.0, 200.0),
    ]
    assert found["withoutLedger"] == ["nlp/waits"]


def test_time_that_was_settled_without_weeks_is_a_row_of_its_own() -> None:
    found = weekly_ledger(RUNS, NOW, None)
    rows = [(each["week"], each["namespace"], each["gpuHours"], each["cost"]) for each in found["weeks"]]
    assert rows == [(EARLIER, "nlp", 2000.0, 4800.0), (EARLIER, "vision", 192.0, 384.0)]


MARKS = st.lists(
    st.tuples(st.integers(1, 500_000), st.sampled_from(CATEGORIES), st.sampled_from([0, 1, 8, 16_384])),
    min_size=1,
    max_size=6,
)
PRICES = st.none() | st.floats(0.01, 100)
STATUSES = st.builds(
    lambda marks, price, phase: {
        "phase": phase,
        "plan": PLAN.model_copy(update={"price_per_gpu_hour": price}).wire(),
        "ledger": {
            "settledAt": CREATED,
            "marks": [
                {
                    "time": timestamp(T0 + sum(after for after, *_ in marks[:number])),
                    "category": category,
                    "accelerators": held,
                }
                for number, (_, category, held) in enumerate(marks)
            ],
            "saveSeconds": 12.5,
        },
    },
    MARKS,
    PRICES,
    st.sampled_from(["Training", "Succeeded"]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), STATUSES), max_size=8), PRICES)
def test_the_sums_are_those_of_the_runs(fleet: list[Any], price: float | None) -> None:
    recipes = [recipe(namespace, f"run-{n}", status) for n, (namespace, status) in enumerate(fleet)]
    found = fleet_ledger(recipes, NOW, price)
    runs = [run_ledger(each, NOW, price) for each in recipes]
    for part, counted in [
        (found["total"], runs),
        *(
            (each, [run for run in runs if run is not None and run["namespace"] == each["namespace"]])
            for each in found["namespaces"]
        ),
    ]:
        totals = [run["total"] for run in counted if run is not None]
        assert part["runs"] == len(totals)
        assert part["seconds"] == pytest.approx(sum(each["seconds"] for each in totals), rel=1e-9)
        # Each run's figures are rounded to 0.0001 hours and 0.01 of money.
        hours = sum(each["gpuHours"] for each in totals)
        assert part["gpuHours"] == pytest.approx(hours, rel=1e-3, abs=1e-4 * (len(totals) + 1))
        costs = [each["cost"] for each in totals if each["cost"] is not None]
        assert (part["cost"] is None) == (not costs)
        assert (part["cost"] or 0.0) == pytest.approx(sum(costs), rel=1e-3, abs=0.01 * (len(costs) + 1))
        in_categories = sum(each["gpuHours"] for each in part["categories"])
        assert part["gpuHours"] == pytest.approx(in_categories, rel=1e-3, abs=1e-3)


def map_with(records: Records) -> dict[str, Any]:
    """A ConfigMap with these records."""
    return {"data": {key: text for key, text in Records().changes(records).items() if text}}


def used(namespace: str, hours: float, price: float | None = None) -> RunUse:
    """What a run has used that held 16 accelerators for so many hours, one of which it lost."""
    held = {"train": 16 * 3600 * (hours - 1), "load": 16 * 3600.0}
    weeks = {"2026-01-05": WeekUse(16 * 3600 * hours, 16 * 3600.0)}
    return RunUse(
        namespace=namespace, name="gone", price=price, seconds={}, accelerator_seconds=held, weeks=weeks
    )


CONFIG_MAPS = [
    map_with(Records({"existing-uid": used("nlp", 50), "gone-uid": used("nlp", 10)})),
    map_with(Records().with_ended({"x": used("audio", 5, price=2.0)}).with_deleted(["x"])),
]
"""Of a run that exists, one that was deleted and not counted yet, and one that was."""
EXISTING = recipe("nlp", "exists", {"phase": "Pending"})
EXISTING["metadata"]["uid"] = "existing-uid"
RUNS_AND_EXISTING = [*RUNS, EXISTING]


def test_deleted_runs_count_in_their_namespaces_and_are_named() -> None:
    records = [Records.read(each["data"]) for each in CONFIG_MAPS]
    deleted = deleted_runs(records, RUNS_AND_EXISTING, None)
    found = fleet_ledger(RUNS_AND_EXISTING, NOW, None, deleted)
    audio, nlp, vision = found["namespaces"]
    assert (audio["runs"], audio["gpuHours"], audio["lostGpuHours"], audio["cost"]) == (1, 80.0, 16.0, 160.0)
    assert (nlp["runs"], nlp["gpuHours"], nlp["unpricedGpuHours"]) == (3, 2160.0, 560.0)
    assert (nlp["deletedRuns"], nlp["deletedGpuHours"]) == (1, 160.0)
    assert vision["deletedRuns"] == 0
    assert (found["total"]["deletedRuns"], found["total"]["gpuHours"]) == (2, 2432.0)
    assert found["notCounted"] is None
    assert fleet_ledger([], NOW, 1.0, deleted)["total"]["cost"] == 240.0


def test_deleted_runs_count_in_their_weeks_and_older_ones_as_earlier() -> None:
    older = used("nlp", 10, price=2.0).model_copy(update={"weeks": {}})
    records = Records().with_ended({"a": used("nlp", 5, price=2.0), "b": older}).with_deleted(["a", "b"])
    found = weekly_ledger([], NOW, None, deleted_runs([records], [], None))
    rows = [
        (
            each["week"],
            each["runs"],
            each["gpuHours"],
            each["lostGpuHours"],
            each["cost"],
            each["deletedGpuHours"],
        )
        for each in found["weeks"]
    ]
    assert rows == [("2026-01-05", 1, 80.0, 16.0, 160.0, 80.0), (EARLIER, 0, 160.0, 16.0, 320.0, 160.0)]


def test_only_deleted_runs_of_the_namespace_count() -> None:
    records = [Records.read(each["data"]) for each in CONFIG_MAPS]
    assert set(deleted_runs(records, RUNS_AND_EXISTING, "audio").by_namespace) == {"audio"}


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The words that a fake kubectl was called with; it prints the runs."""
    program, answer, maps, words = (tmp_path / name for name in ("kubectl", "answer", "maps", "words"))
    answer.write_text(json.dumps({"items": RUNS}))
    maps.write_text(json.dumps({"items": CONFIG_MAPS}))
    program.write_text(
        f'#!/bin/sh\necho "$*" >> {words}\n'
        f'case "$*" in\n*configmaps*) cat {maps};;\n*) cat {answer};;\nesac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return words


def megatron(*words: str) -> Result:
    return CliRunner().invoke(cli, ["ledger", *words], catch_exceptions=False)


def test_the_table_has_namespaces_total_and_what_is_not_counted(words: Path) -> None:
    result = megatron("--all-namespaces")
    assert result.exit_code == 0
    assert "--all-namespaces" in words.read_text()
    lines = {line.split()[0]: line.split()[1:] for line in result.output.splitlines() if line}
    assert lines["vision"] == ["1", "192.0", "32.0", "16.7%", "384.00", "0.0"]
    assert lines["audio"] == ["1", "80.0", "16.0", "20.0%", "160.00", "80.0"]
    assert "OF DELETED RUNS" in result.output
    assert "nlp/waits" in result.output
    assert NOT_COUNTED not in result.output


def test_config_maps_that_may_not_be_read_cost_only_the_deleted_runs(words: Path) -> None:
    kubectl = words.with_name("kubectl")
    refusal = 'Error from server (Forbidden): configmaps "megatron-ledger-0" is forbidden'
    kubectl.write_text(
        f"#!/bin/sh\ncase \"$*\" in\n*configmaps*) echo '{refusal}' >&2; exit 1;;\n"
        f"*) cat {words.with_name('answer')};;\nesac\n"
    )
    result = megatron("-A")
    assert result.exit_code == 0
    lines = {line.split()[0]: line.split()[1:] for line in result.output.splitlines() if line}
    assert lines["nlp"] == ["2", "2,000.0", "0.0", "0.0%", "4,800.00"]
    assert lines["total"] == ["3", "2,192.0", "32.0", "1.5%", "5,184.00"]
    assert "not in the cost: 400.0 GPU hours" in result.output
    assert f"{NOT_COUNTED}: (Forbidden)" in result.output
    found = json.loads(megatron("-A", "--by-week", "-o", "json").output)
    assert found["notCounted"].startswith(NOT_COUNTED)


def test_an_operator_namespace_without_config_maps_is_named(words: Path) -> None:
    words.with_name("maps").write_text('{"items": []}')
    found = json.loads(megatron("-A", "--operator-namespace", "ops", "-o", "json").output)
    assert found["notCounted"] == f"{NOT_COUNTED}: namespace ops has no ConfigMap megatron-ledger-*."
    assert found["total"]["deletedRuns"] == 0


def test_the_config_maps_are_read_in_the_operators_namespace_before_the_recipes(words: Path) -> None:
    megatron("-n", "nlp", "--operator-namespace", "ops", "--by-week")
    first, second = words.read_text().splitlines()[:2]
    assert "--namespace=ops" in first
    assert "megatron-ledger-f" in first
    assert "--namespace=nlp" in second


def test_one_namespace_is_the_contexts_or_the_given_one(words: Path) -> None:
    total = json.loads(megatron("-n", "nlp", "-o", "json").output)["total"]
    assert (total["runs"], total["deletedRuns"]) == (5, 2), (
        "the fake prints all runs; the record of none exists"
    )
    assert "--namespace=nlp" in words.read_text()
    assert "--all-namespaces" not in words.read_text()


@pytest.mark.usefixtures("words")
@pytest.mark.parametrize("other", [["llama"], ["-n", "nlp"]])
def test_all_namespaces_with_a_name_or_a_namespace_is_refused(other: list[str]) -> None:
    result = megatron("-A", *other)
    assert result.exit_code == 2
    assert "--all-namespaces" in result.output
    assert other[-1] in result.output
