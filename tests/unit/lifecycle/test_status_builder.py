"""The status as it is carried from look to look."""

from typing import Any

from megatron_operator.api.conditions import Condition
from megatron_operator.api.times import seconds, timestamp
from megatron_operator.lifecycle.status_builder import Draft


def test_a_conditions_time_moves_with_its_status_alone(run: Any) -> None:
    draft = run.draft()
    draft.tell(Condition.RUNNING, False, "PodsStarting", "1 of 2 pods run")
    began = draft.condition(Condition.RUNNING)
    run.keep(draft)
    run.pass_time(60)
    draft = run.draft()
    draft.tell(Condition.RUNNING, False, "Unschedulable", "no node")
    changed = draft.condition(Condition.RUNNING)
    assert began is not None
    assert changed is not None
    assert changed.reason == "Unschedulable"
    assert changed.last_transition_time == began.last_transition_time
    draft.tell(Condition.RUNNING, True, "Training")
    moved = draft.condition(Condition.RUNNING)
    assert moved is not None
    assert moved.last_transition_time == timestamp(run.now)


def test_telling_the_same_again_changes_nothing(run: Any) -> None:
    draft = run.draft()
    draft.tell(Condition.PLANNED, True, "Planned", "TP 2")
    run.keep(draft)
    run.pass_time(60)
    draft = run.draft()
    draft.tell(Condition.PLANNED, True, "Planned", "TP 2")
    assert not draft.changed()


def test_a_status_that_cannot_be_read_is_begun_anew(run: Any) -> None:
    run.body["status"] = {"phase": "Training", "recovery": {"restarts": "many"}}
    draft = run.draft()
    assert draft.phase is None
    assert draft.recovery.restarts == 0


def test_the_status_is_written_only_onto_the_version_that_was_looked_at(run: Any) -> None:
    metadata = run.draft().patch()["metadata"]
    assert (metadata["uid"], metadata["resourceVersion"]) == ("u", "1")


def test_a_long_message_is_cut_to_what_the_api_server_keeps(run: Any) -> None:
    draft: Draft = run.draft()
    draft.tell(Condition.FAILED, True, "JobFailed", "x" * 100_000)
    failed = draft.condition(Condition.FAILED)
    assert failed is not None
    assert len(failed.message) == 4096


def test_times_survive_writing_and_reading() -> None:
    assert seconds(timestamp(1_800_000_000.7)) == 1_800_000_000
    assert seconds(None) is None
