"""Phases and condition types of a MegatronRecipe; the reasons are in `reasons`."""

from enum import StrEnum
from typing import Final


class Phase(StrEnum):
    """`status.phase`: a one-word summary for `kubectl get`."""

    PENDING = "Pending"
    REFUSED = "Refused"
    IMPORTING = "Importing"
    PREPARING = "Preparing"
    CHECKING = "Checking"
    QUEUED = "Queued"
    STARTING = "Starting"
    TRAINING = "Training"
    EVALUATING = "Evaluating"
    RECOVERING = "Recovering"
    EXPORTING = "Exporting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


TRAINS: Final = frozenset({Phase.TRAINING, Phase.EVALUATING})
"""Phases of a run whose ranks have started and go on."""


class Condition(StrEnum):
    """Types of `status.conditions`."""

    PLANNED = "Planned"
    IMPORTED = "Imported"
    """Set only for a run whose weights are imported."""
    PREPARED = "Prepared"
    RUNNING = "Running"
    RECOVERING = "Recovering"
    EXPORTED = "Exported"
    """Set only for a run that exports its result, once it has trained to the end."""
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    INTERNAL_ERROR = "InternalError"
    """Set only while the operator fails on the recipe."""
    READY = "Ready"
    """A summary for kubectl, Helm and GitOps tools: the run trains as specified, or has succeeded."""
    STALLED = "Stalled"
    """Set only while nothing goes on until a user acts."""
