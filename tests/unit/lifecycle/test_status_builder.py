"""The status from one reconcile to the next."""

from typing import Any

from megatron_operator.api.conditions import Condition
from megatron_operator.api.reasons import Reason
from megatron_operator.api.times import seconds, timestamp
from megatron_operator.lifecycle.status_builder import StatusBuilder


def test_the_transition_time_changes_only_with_the_status_of_a_condition(run: Any) -> None:
    status = run.status()
    status.set_condition(Condition.RUNNING, False, Reason.PODS_STARTING, "1 of 2 pods run")
    began = status.condition(Condition.RUNNING)
    run.write(status)
    run.pass_time(60)
    status = run.status()
    status.set_condition(Condition.RUNNING, False, Reason.UNSCHEDULABLE, "no node")
    changed = status.condition(Condition.RUNNING)
    assert began is not None
    assert changed is not None
    assert changed.reason == Reason.UNSCHEDULABLE
    assert changed.last_transition_time == began.last_transition_time
    status.set_condition(Condition.RUNNING, True, Reason.TRAINING)
    moved = status.condition(Condition.RUNNING)
    assert moved is not None
    assert moved.last_transition_time == timestamp(run.now)


def test_setting_the_same_condition_again_changes_nothing(run: Any) -> None:
    status = run.status()
    status.set_condition(Condition.PLANNED, True, Reason.PLANNED, "TP 2")
    run.write(status)
    run.pass_time(60)
    status = run.status()
    status.set_condition(Condition.PLANNED, True, Reason.PLANNED, "TP 2")
    assert not status.changed()


def test_an_invalid_field_of_the_status_is_dropped(run: Any) -> None:
    run.body["status"] = {"phase": "Training", "recovery": {"restarts": "many"}}
    status = run.status()
    assert status.phase == "Training"
    assert status.recovery.restarts == 0


def test_the_patch_applies_only_to_the_version_that_was_read(run: Any) -> None:
    metadata = run.status().patch()["metadata"]
    assert (metadata["uid"], metadata["resourceVersion"]) == ("u", "1")


def test_a_long_message_is_truncated(run: Any) -> None:
    status: StatusBuilder = run.status()
    status.set_condition(Condition.FAILED, True, Reason.JOB_FAILED, "x" * 100_000)
    failed = status.condition(Condition.FAILED)
    assert failed is not None
    assert len(failed.message) == 4096


def test_times_are_parsed_as_they_were_written() -> None:
    assert seconds(timestamp(1_800_000_000.7)) == 1_800_000_000
    assert seconds(None) is None


def test_conditions_have_one_order_whatever_is_set_first(run: Any) -> None:
    status = run.status()
    for kind in (Condition.READY, Condition.RUNNING, Condition.PLANNED):
        status.set_condition(kind, True, "Any")
    assert [each.type for each in status.current.conditions] == ["Planned", "Running", "Ready"]
