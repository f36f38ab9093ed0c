"""Ready and Stalled as kubectl wait, Helm, Flux and Argo CD read them."""

from typing import Any

import pytest
from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.reasons import Reason
from megatron_operator.lifecycle.readiness import LONGEST_SUMMARY, NEEDS_A_USER, set_readiness
from megatron_operator.lifecycle.status_builder import StatusBuilder

GENERATION = 3
Set = tuple[Condition, bool | None, Reason]

PLANNED: Set = (Condition.PLANNED, True, Reason.PLANNED)
RUNNING: Set = (Condition.RUNNING, True, Reason.TRAINING)


def derived(phase: Phase, *conditions: Set, observed: int = GENERATION) -> StatusBuilder:
    """The status with Ready and Stalled."""
    metadata = {"name": "r", "namespace": "d", "uid": "u", "generation": GENERATION, "resourceVersion": "1"}
    status = StatusBuilder.of({"metadata": metadata, "spec": {}}, 0.0)
    status.set(phase=phase, observed_generation=observed)
    for kind, value, reason in conditions:
        status.set_condition(kind, value, reason, "why")
    set_readiness(status)
    return status


def kstatus(status: StatusBuilder) -> str:
    """What kstatus computes of a custom resource (sigs.k8s.io/cli-utils, `GetStatus`)."""
    wire: Any = status.current.wire()
    if wire["observedGeneration"] != GENERATION:
        return "InProgress"
    conditions = {each["type"]: each["status"] for each in wire["conditions"]}
    if conditions.get("Stalled") == "True":
        return "Failed"
    return "InProgress" if conditions.get("Ready", "True") != "True" else "Current"


@pytest.mark.parametrize(
    ("phase", "conditions", "expected"),
    [
        (Phase.TRAINING, [PLANNED, RUNNING], "Current"),
        (Phase.SUCCEEDED, [PLANNED, (Condition.SUCCEEDED, True, Reason.SUCCEEDED)], "Current"),
        (Phase.REFUSED, [(Condition.PLANNED, False, Reason.REFUSED)], "Failed"),
        (Phase.TRAINING, [(Condition.PLANNED, False, Reason.REFUSED), RUNNING], "Failed"),
        (Phase.TRAINING, [(Condition.PLANNED, False, Reason.CHECKPOINT_INCOMPATIBLE), RUNNING], "Failed"),
        (Phase.FAILED, [PLANNED, (Condition.FAILED, True, Reason.RESTARTS_SPENT)], "Failed"),
        (Phase.FAILED, [PLANNED, (Condition.FAILED, True, Reason.PREPARE_FAILED)], "Failed"),
        (Phase.TRAINING, [RUNNING, (Condition.INTERNAL_ERROR, True, Reason.INTERNAL_ERROR)], "Failed"),
        (Phase.PENDING, [PLANNED, (Condition.RUNNING, False, Reason.NAME_TAKEN)], "Failed"),
        (Phase.PENDING, [PLANNED, (Condition.RUNNING, False, Reason.VOLUME_CLAIM_MISSING)], "Failed"),
        (
            Phase.PENDING,
            [PLANNED, (Condition.RUNNING, False, Reason.WORKLOAD_PRIORITY_CLASS_MISSING)],
            "Failed",
        ),
        (Phase.STARTING, [PLANNED, (Condition.RUNNING, False, Reason.IMAGE_PULL_FAILED)], "Failed"),
        (Phase.PREPARING, [PLANNED, (Condition.PREPARED, False, Reason.PREPARING)], "InProgress"),
        (Phase.PREPARING, [PLANNED, (Condition.PREPARED, False, Reason.IMAGE_PULL_FAILED)], "Failed"),
        (Phase.IMPORTING, [PLANNED, (Condition.IMPORTED, False, Reason.IMPORTING)], "InProgress"),
        (Phase.IMPORTING, [PLANNED, (Condition.IMPORTED, False, Reason.UNSCHEDULABLE)], "InProgress"),
        (Phase.EXPORTING, [PLANNED, (Condition.EXPORTED, False, Reason.EXPORTING)], "InProgress"),
        (Phase.EXPORTING, [PLANNED, (Condition.EXPORTED, False, Reason.NAME_TAKEN)], "Failed"),
        (Phase.FAILED, [PLANNED, (Condition.FAILED, True, Reason.EXPORT_FAILED)], "Failed"),
        (Phase.STARTING, [PLANNED, (Condition.RUNNING, False, Reason.UNSCHEDULABLE)], "InProgress"),
        (Phase.QUEUED, [PLANNED, (Condition.RUNNING, False, Reason.QUEUED)], "InProgress"),
        (Phase.QUEUED, [PLANNED, (Condition.PREPARED, False, Reason.QUEUED)], "InProgress"),
        (Phase.CHECKING, [PLANNED, (Condition.PREPARED, False, Reason.CHECKING)], "InProgress"),
        (Phase.EVALUATING, [PLANNED, RUNNING], "Current"),
        (Phase.PENDING, [PLANNED, (Condition.RUNNING, False, Reason.QUOTA_EXCEEDED)], "InProgress"),
        (Phase.STARTING, [PLANNED, (Condition.RUNNING, True, Reason.PODS_RUNNING)], "InProgress"),
        (Phase.RECOVERING, [RUNNING, (Condition.RECOVERING, True, Reason.PODS_LOST)], "InProgress"),
        (Phase.SUSPENDED, [PLANNED, (Condition.RUNNING, False, Reason.SUSPENDED)], "InProgress"),
    ],
)
def test_tools_read_the_state_of_a_recipe(phase: Phase, conditions: list[Set], expected: str) -> None:
    assert kstatus(derived(phase, *conditions)) == expected


def test_an_edit_that_is_not_applied_yet_is_not_ready() -> None:
    status = derived(Phase.TRAINING, PLANNED, RUNNING, observed=GENERATION - 1)
    ready = status.condition(Condition.READY)
    assert ready is not None
    assert ready.status == "Unknown"
    assert status.condition(Condition.STALLED) is None


def test_an_edit_that_waits_for_a_missing_claim_is_stalled() -> None:
    missing = (Condition.PREPARED, False, Reason.VOLUME_CLAIM_MISSING)
    status = derived(Phase.TRAINING, PLANNED, RUNNING, missing, observed=GENERATION - 1)
    assert not status.is_true(Condition.READY)
    assert status.is_true(Condition.STALLED)


def test_stalled_goes_away_when_the_cause_does() -> None:
    status = derived(Phase.REFUSED, (Condition.PLANNED, False, Reason.REFUSED))
    assert status.is_true(Condition.STALLED)
    status.set(phase=Phase.TRAINING)
    status.set_condition(*PLANNED)
    status.set_condition(*RUNNING)
    set_readiness(status)
    assert status.condition(Condition.STALLED) is None
    assert status.is_true(Condition.READY)


def test_a_long_refusal_is_summarized() -> None:
    status = derived(Phase.REFUSED, (Condition.PLANNED, False, Reason.REFUSED))
    status.set_condition(Condition.PLANNED, False, Reason.REFUSED, "x" * 4000)
    set_readiness(status)
    for kind in (Condition.READY, Condition.STALLED):
        condition = status.condition(kind)
        assert condition is not None
        assert len(condition.message) == LONGEST_SUMMARY


@pytest.mark.parametrize("reason", sorted(NEEDS_A_USER))
def test_every_reason_that_needs_a_user_states_what_to_do(reason: Reason) -> None:
    assert reason.action
