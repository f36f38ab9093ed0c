"""What recovery looks at. Times are seconds since the epoch, durations seconds."""

from dataclasses import dataclass
from enum import StrEnum

HEARTBEAT_TRAINING = "training"
HEARTBEAT_GATHERING = frozenset({"starting", "rendezvous"})
HEARTBEAT_ENDED = frozenset({"finished", "failed"})


class PodPhase(StrEnum):
    """A pod's phase, in Kubernetes' words."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod of the gang."""

    node_rank: int
    phase: PodPhase
    started: float | None = None
    """When its container began to run."""
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What the pods last said of the training."""

    phase: str
    iteration: int | None
    step_seconds: float | None
    answered: float
    """When a pod last answered."""
    moved: float | None
    """When the iteration was last seen to move."""


@dataclass(frozen=True, slots=True)
class History:
    """What the status remembers of earlier restarts."""

    run_id: str
    restarts_since_checkpoint: int = 0
    last_restart: float | None = None
    last_cause: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """The recipe's `spec.recovery`."""

    max_restarts: int
    rendezvous_timeout: float
    hang_timeout: float | None = None
    """None with `hang_automatic` false: never."""
    hang_automatic: bool = True

    @classmethod
    def parse(cls, max_restarts: int, rendezvous_timeout: int, hang_timeout: str) -> "Limits":
        """From the words of the recipe: `auto`, `off` or `600s`."""
        seconds = float(hang_timeout[:-1]) if hang_timeout.endswith("s") else None
        return cls(max_restarts, float(rendezvous_timeout), seconds, hang_timeout == "auto")


@dataclass(frozen=True, slots=True)
class Observation:
    """A run's gang at one moment."""

    now: float
    size: int
    """Pods that the gang should have."""
    pods: tuple[PodView, ...]
    heartbeat: Heartbeat | None
    history: History
    limits: Limits
    ended: bool = False
    """The job has succeeded or failed by its own word."""
