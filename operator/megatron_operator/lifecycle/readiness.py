"""The conditions Ready and Stalled, which kubectl, Helm and GitOps tools read (the kstatus conventions).

They repeat what phase and the other conditions hold, so they are derived from those just before a write.
"""

from typing import Final

from megatron_operator.api.conditions import TRAINS, Condition, Phase
from megatron_operator.api.reasons import Reason
from megatron_operator.api.status import RecipeCondition
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.lifecycle.status_size import cut

LONGEST_SUMMARY: Final = 256
"""Bytes of the message of Ready and Stalled; the condition that they repeat has the whole text."""
NEEDS_A_USER: Final = frozenset(
    {
        Reason.VOLUME_CLAIM_MISSING,
        Reason.VOLUME_CLAIM_REFUSED,
        Reason.VOLUME_CLAIM_OF_ONE_NODE,
        Reason.WORKLOAD_PRIORITY_CLASS_MISSING,
        Reason.NAME_TAKEN,
        Reason.PYTORCHJOB_MISSING,
        Reason.JOBSET_MISSING,
        Reason.TRAINJOB_MISSING,
        Reason.COMPUTE_DOMAIN_MISSING,
        Reason.POD_GROUP_MISSING,
        Reason.JOB_REFUSED,
        Reason.PODS_NOT_CREATED,
        Reason.IMAGE_PULL_FAILED,
        Reason.POD_CONFIG_ERROR,
    }
)
"""Reasons to wait that end only when somebody acts. Capacity, quota and queues become free by themselves."""
_IN_PROGRESS: Final = {
    Phase.IMPORTING: Condition.IMPORTED,
    Phase.PREPARING: Condition.PREPARED,
    Phase.CHECKING: Condition.PREPARED,
    Phase.EXPORTING: Condition.EXPORTED,
    Phase.RECOVERING: Condition.RECOVERING,
}
"""Phase -> the condition that explains it; Running for all others but Queued."""
_OF_JOBS: Final = (Condition.IMPORTED, Condition.PREPARED, Condition.RUNNING)
"""Conditions of the Jobs that can be in a queue before the run has trained."""


def set_readiness(status: StatusBuilder) -> None:
    """Derive Ready and Stalled. Neither is set before anything else is known of the recipe.

    Ready is True while the run trains as its newest spec asks, and once it has succeeded. Stalled is set, and
    True, only while nothing goes on until a user acts.
    """
    obstacle = _final_obstacle(status)
    source = obstacle or _condition_in_progress(status)
    if source is None:
        status.remove_conditions(Condition.READY, Condition.STALLED)
        return
    ready = obstacle is None and status.phase in (*TRAINS, Phase.SUCCEEDED)
    # The job of the previous generation trains, and the edit is not applied yet.
    outdated = ready and status.edited
    message = cut(source.message, LONGEST_SUMMARY)
    status.set_condition(Condition.READY, None if outdated else ready, source.reason, message)
    if obstacle is not None or (source.status != "True" and source.reason in NEEDS_A_USER):
        status.set_condition(Condition.STALLED, True, source.reason, message)
    else:
        status.remove_conditions(Condition.STALLED)


def _final_obstacle(status: StatusBuilder) -> RecipeCondition | None:
    """The condition that shows that the spec as it is leads nowhere; None where it may."""
    if status.is_true(Condition.INTERNAL_ERROR):
        return status.condition(Condition.INTERNAL_ERROR)
    if status.is_false(Condition.PLANNED):
        return status.condition(Condition.PLANNED)
    if status.phase == Phase.FAILED:
        return status.condition(Condition.FAILED)
    prepared = status.condition(Condition.PREPARED)
    if status.edited and prepared is not None and prepared.reason in NEEDS_A_USER:
        return prepared
    return None


def _condition_in_progress(status: StatusBuilder) -> RecipeCondition | None:
    """The condition that explains the phase; None before there is one."""
    if status.phase == Phase.SUCCEEDED:
        return status.condition(Condition.SUCCEEDED)
    if status.phase == Phase.QUEUED:
        return next((each for each in map(status.condition, _OF_JOBS) if each and _is_queued(each)), None)
    explains = next(
        (kind for phase, kind in _IN_PROGRESS.items() if phase == status.phase), Condition.RUNNING
    )
    return status.condition(explains) or status.condition(Condition.RUNNING)


def _is_queued(condition: RecipeCondition) -> bool:
    return condition.reason == Reason.QUEUED
