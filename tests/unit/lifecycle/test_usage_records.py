"""What runs have used, as the operator's ConfigMaps have it."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron_operator.lifecycle import usage_records
from megatron_operator.lifecycle.usage_records import (
    CONFIG_MAPS,
    OTHERS,
    RecordError,
    Records,
    RunUse,
    WeekSum,
    WeekUse,
    batches,
    config_map_of,
    run_use,
    total,
)

WEEK = "2026-11-23"


def use(seconds: float = 100.0, *, price: float | None = None, week: str = WEEK, **more: Any) -> RunUse:
    held = {"train": seconds, "load": seconds}
    weeks = {week: WeekUse(2 * seconds, seconds)}
    fields = {"namespace": "nlp", "name": "run", "seconds": {"train": 10.0, "load": 10.0}} | more
    return RunUse(price=price, accelerator_seconds=held, weeks=weeks, **fields)


def stored(records: Records) -> dict[str, str]:
    """The data of a ConfigMap with these records."""
    return {key: text for key, text in Records().changes(records).items() if text is not None}


def test_a_deleted_run_moves_from_its_record_to_the_sums_in_one_change() -> None:
    before = Records().with_ended({"a": use(price=3.6), "b": use()})
    after = before.with_deleted(["a", "b"])
    sums = after.namespaces["nlp"]
    assert (sums.runs, sums.accelerator_seconds) == (2, {"train": 200.0, "load": 200.0})
    assert (sums.cost, sums.unpriced) == (pytest.approx(0.2), 200.0)
    assert sums.weeks == {WEEK: WeekSum(2, 400.0, 200.0, pytest.approx(0.2), 200.0)}
    changes = before.changes(after)
    assert {key: text is None for key, text in changes.items()} == {
        "run.a": True,
        "run.b": True,
        "namespace.nlp": False,
    }


def test_a_run_without_a_record_changes_nothing() -> None:
    records = Records().with_ended({"a": use()}).with_deleted(["a"])
    assert records.changes(records.with_deleted(["a", "unknown"])) == {}


def test_what_is_stored_reads_back() -> None:
    records = Records().with_ended({"a": use(), "b": use(price=2.0)}).with_deleted(["b"])
    assert Records.read(stored(records)) == records
    assert Records.read(None) == Records()


@pytest.mark.parametrize("key", ["run.a", "namespace.nlp"])
def test_data_that_cannot_be_read_is_named(key: str) -> None:
    with pytest.raises(RecordError, match=key):
        Records.read({key: "{"})


def test_keys_of_others_are_left_alone() -> None:
    records = Records.read({"note": "kept by hand"})
    assert records == Records()
    assert "note" not in records.changes(records.with_ended({"a": use()}))


def test_records_of_deleted_runs_count_before_they_are_in_the_sums() -> None:
    parts = [Records().with_ended({"a": use(), "b": use()}).with_deleted(["a"]), Records({"c": use()})]
    assert total(parts, ["b", "c"])["nlp"].runs == 1
    assert total(parts, ["c"])["nlp"].runs == 2
    assert total(parts, [])["nlp"].accelerator_seconds == {"train": 300.0, "load": 300.0}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 80)), max_size=400))
def test_the_data_stays_within_its_bounds_and_the_sums_complete(runs: list[tuple[int, int]]) -> None:
    """Many namespaces, each with many weeks: old weeks are dropped, and never a second of the sums."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(usage_records, "MAX_SUM_BYTES", 4096)
        records = Records()
        for number, (namespace, week) in enumerate(runs):
            ended = use(namespace=f"team-{namespace % 8}", week=f"{2000 + week}-01-03")
            records = Records.read(
                stored(records.with_ended({str(number): ended}).with_deleted([str(number)]))
            )
        data = stored(records)
        assert sum(len(key) + len(text) for key, text in data.items()) <= 4096
    assert sum(each.runs for each in records.namespaces.values()) == len(runs)
    held = sum(sum(each.accelerator_seconds.values()) for each in records.namespaces.values())
    assert held == 200 * len(runs)


def test_existing_runs_have_a_record_only_where_there_is_room() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(usage_records, "MAX_RECORD_BYTES", 1000)
        records = Records().with_runs({str(number): use() for number in range(100)})
    assert 1 < len(records.runs) < 10
    assert records.with_ended({"last": use()}).runs["last"] == use(), "deleted runs always have one"


def test_a_run_without_accelerators_has_no_record() -> None:
    metadata = {"namespace": "nlp", "name": "run", "uid": "a"}
    assert run_use({"metadata": metadata}, 0.0) is None
    waiting = {
        "settledAt": "2026-11-23T00:00:00Z",
        "marks": [{"time": "2026-11-23T00:00:00Z", "category": "queue"}],
    }
    assert run_use({"metadata": metadata, "status": {"ledger": waiting}}, 1.8e9) is None


def test_uids_spread_over_all_config_maps() -> None:
    assert {config_map_of(f"uid-{number}") for number in range(1000)} == set(CONFIG_MAPS)


def test_without_weeks_left_the_smallest_namespaces_become_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_records, "MAX_SUM_BYTES", 2000)
    runs = {f"{number}": use(number + 1.0, namespace=f"team-{number}") for number in range(40)}
    data = stored(Records().with_ended(runs).with_deleted(runs))
    assert sum(len(key) + len(text) for key, text in data.items()) <= 2000
    sums = Records.read(data).namespaces
    assert OTHERS in sums
    assert "team-39" in sums
    assert "team-0" not in sums
    assert sum(each.runs for each in sums.values()) == 40
    assert sum(each.accelerator_seconds["train"] for each in sums.values()) == sum(range(1, 41))
    again = Records.read(data).with_ended({"new": use(5.0, namespace="team-0")}).with_deleted(["new"])
    assert sum(each.runs for each in Records.read(stored(again)).namespaces.values()) == 41


def test_records_that_grow_stay_within_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {f"{number}": use(number + 1.0) for number in range(20)}
    size = sum(len(key) + len(text) for key, text in stored(Records().with_runs(runs)).items())
    monkeypatch.setattr(usage_records, "MAX_RECORD_BYTES", size)
    weeks = {f"2026-10-{day}": WeekUse(1.0, 0.0) for day in range(10, 31)}
    grown = {uid: each.model_copy(update={"weeks": weeks}) for uid, each in runs.items()}
    after = Records().with_runs(runs).with_runs(grown)
    assert 0 < len(after.runs) < 20
    assert sum(len(key) + len(text) for key, text in stored(after).items()) <= size


def test_final_records_are_parted_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_records, "MAX_ENDED_BYTES", 1000)
    runs = {f"{number}": use(number + 1.0) for number in range(20)}
    parts = list(batches(runs))
    assert {uid: each for part in parts for uid, each in part.items()} == runs
    for part in parts:
        assert sum(len(k) + len(v) for k, v in stored(Records().with_ended(part)).items()) <= 1000
    assert usage_records.MAX_RECORD_BYTES + usage_records.MAX_SUM_BYTES <= 2**20
