"""Errors of the SDK beside InvalidRecipeError and ApiError. OperatorError is the base class of all.

OperatorError
├── InvalidRecipeError        the recipe; `errors` with field, message and fix
├── ApiError                  the API server refused a request; `status`, `reason`, `message`
├── ClusterUnreachableError   no kubeconfig, or no connection; or it was closed
├── MissingExtraError         an optional package is not installed
└── RunError                  one run; `namespace`, `name`
    ├── RunNotFoundError
    ├── ApplyConflictError    other managers own fields that the recipe sets
    ├── RunEndedError         it ended without what was waited for; `phase`, `incident`
    │   └── RunFailedError    ... as Failed or Refused
    ├── WaitTimeoutError      also a TimeoutError
    └── LogUnavailableError
"""

from megatron_operator.api.conditions import Phase
from megatron_operator.api.errors import OperatorError
from megatron_operator.api.recovery_status import Incident


class ClusterUnreachableError(OperatorError):
    """There is no configuration of a cluster, its API server is silent, or the connection was closed."""


class MissingExtraError(OperatorError, ImportError):
    """An optional package is not installed."""


class RunError(OperatorError):
    """An error of one run."""

    def __init__(self, namespace: str, name: str, message: str) -> None:
        super().__init__(f"{namespace}/{name}: {message}")
        self.namespace = namespace
        self.name = name


class RunNotFoundError(RunError):
    """There is no MegatronRecipe of this name, or it was deleted."""


class ApplyConflictError(RunError):
    """Another field manager owns fields that the recipe sets to other values."""


class RunEndedError(RunError):
    """The run ended, and what was waited for can no longer come."""

    def __init__(
        self, namespace: str, name: str, message: str, phase: Phase | str, incident: Incident | None
    ) -> None:
        super().__init__(namespace, name, message)
        self.phase = phase
        self.incident = incident
        """The run's last incident; None if it had none."""


class RunFailedError(RunEndedError):
    """The run has failed, or the operator has refused it."""


class WaitTimeoutError(RunError, TimeoutError):
    """What was waited for did not come in time."""


class LogUnavailableError(RunError):
    """There is no pod to read a log from."""
