"""A status of another version of the operator is read; what is unknown costs nothing else."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from megatron_operator.api.status import MegatronRecipeStatus
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.lifecycle.status_reading import read_status
from megatron_operator.lifecycle.time_ledger import State, advance

RELEASED = json.loads((Path(__file__).parent / "status-of-0.1-and-0.2.json").read_text())
"""Every field of the status of releases 0.1.0 and 0.2.0, which have the same fields."""
LEDGER: dict[str, Any] = {
    "settledAt": "2026-11-22T21:06:40Z",
    "seconds": {"prepare": 70.0, "schedule": 20.0, "start": 60.0, "train": 3837.5, "save": 12.5},
    "acceleratorSeconds": {"start": 480.0, "train": 30700.0, "save": 100.0},
    "losses": [{"category": "prepare", "seconds": 70.0}, {"category": "start", "seconds": 60.0}],
    "marks": [{"time": "2026-11-22T21:06:40Z", "category": "idle", "cause": "Succeeded", "accelerators": 0}],
    "saveSeconds": 12.5,
}
"""Of a run that is over, as it was written before ledgers had weeks."""
JUNK: tuple[Any, ...] = ({"future": [1]}, [["future"]], None)


def paths(value: Any, at: tuple[int | str, ...] = ()) -> Iterator[tuple[int | str, ...]]:
    """The path of every part of a status."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield (*at, key)
        yield from paths(part, (*at, key))


def at(value: Any, path: tuple[int | str, ...]) -> Any:
    for part in path:
        value = value[part]
    return value


def builder(status: Any) -> StatusBuilder:
    metadata = {"name": "run", "namespace": "default", "uid": "u", "generation": 7, "resourceVersion": "1"}
    return StatusBuilder.of({"metadata": metadata, "spec": {}, "status": status}, 0.0)


def test_the_status_of_every_release_is_read_without_loss() -> None:
    status, dropped = read_status(RELEASED)
    assert dropped == ()
    assert status.wire() == RELEASED


def test_an_upgrade_does_not_write_the_ledger_of_an_ended_run_again() -> None:
    status = builder(RELEASED | {"phase": "Succeeded", "ledger": LEDGER})
    ledger = status.current.ledger
    assert ledger is not None
    status.set(ledger=advance(ledger, State("idle", "Succeeded"), 2e9, [], ended=True))
    assert status.dropped == ()
    assert status.wire() == status.body["status"]
    assert not status.changed()


def test_fields_of_a_newer_version_are_dropped_and_nothing_else() -> None:
    newer = copy.deepcopy(RELEASED)
    sections = [(), *(path for path in paths(RELEASED) if isinstance(at(RELEASED, path), dict))]
    maps = {("checkpoint", "contract"), ("recovery", "nodeFailures")}
    extended = [path for path in sections if path not in maps]
    for path in extended:
        at(newer, path)["ofANewerVersion"] = {"deep": [1, 2]}
    status, dropped = read_status(newer)
    assert status.wire() == RELEASED
    assert len(dropped) == len(extended) > 10
    assert "status.recovery.history[0].ofANewerVersion" in dropped


def test_words_of_a_newer_version_are_read() -> None:
    newer = copy.deepcopy(RELEASED)
    newer["phase"] = "Hibernating"
    newer["recovery"]["history"][0]["kind"] = "quantum"
    newer["conditions"].append(newer["conditions"][0] | {"type": "Hibernating", "reason": "Winter"})
    status, dropped = read_status(newer)
    assert dropped == ()
    assert status.wire() == newer


@pytest.mark.parametrize("junk", JUNK, ids=["object", "list", "null"])
def test_an_unreadable_part_costs_at_most_its_own_section(junk: Any) -> None:
    for path in paths(RELEASED):
        broken = copy.deepcopy(RELEASED)
        at(broken, path[:-1])[path[-1]] = junk
        status, dropped = read_status(broken)
        wire = status.wire()
        for name in RELEASED:
            assert name == path[0] or wire[name] == RELEASED[name], f"{path} costs {name}: {dropped}"


def test_an_unreadable_incident_costs_no_other_incident() -> None:
    broken = copy.deepcopy(RELEASED)
    first = broken["recovery"]["history"][0]
    broken["recovery"]["history"] = [first, {"kind": "pod"}, first | {"number": 9}, first | {"number": "?"}]
    status, _ = read_status(broken)
    assert status.recovery is not None
    assert [each.number for each in status.recovery.history] == [7, 9]
    assert status.checkpoint == MegatronRecipeStatus.model_validate(RELEASED).checkpoint


@pytest.mark.parametrize("value", ["text", 5, [1], True])
def test_a_status_that_is_no_object_is_dropped(value: Any) -> None:
    assert read_status(value) == (MegatronRecipeStatus(), ("status",))


def test_a_recipe_keeps_job_and_checkpoint_contract_after_a_rollback() -> None:
    status = builder(RELEASED | {"ofANewerVersion": 1})
    assert status.current.job is not None
    assert status.checkpoint.contract == RELEASED["checkpoint"]["contract"]
    assert not status.edited, "a rollback is no edit: the job stays"
    assert status.dropped == ("status.ofANewerVersion",)
    assert status.changed(), "the next write removes what is unknown"
