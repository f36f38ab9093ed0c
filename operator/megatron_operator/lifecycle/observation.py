"""What recovery looks at. Times are seconds since the epoch, durations seconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from megatron_operator.api.recipe import RecoverySpec

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
    name: str = ""
    """Whole name: decisions name pods by it."""
    node: str | None = None
    """None while it is not scheduled."""
    overdue: bool = False
    """It is being deleted, and its grace period has passed."""
    unreachable_since: float | None = None
    """Since when nothing was heard of its node: Ready is not true. 0.0 when the node is gone."""

    @property
    def unreachable(self) -> bool:
        return self.unreachable_since is not None


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
    unmoved: float | None = None
    """Seconds for which pods answered without moving, by a clock that nobody sets; None: not measured."""


@dataclass(frozen=True, slots=True)
class History:
    """What the status remembers of earlier restarts."""

    run_id: str
    restarts_since_checkpoint: int = 0
    last_restart: float | None = None
    last_cause: str | None = None
    first_cause: str | None = None
    """Of the first restart since the newest checkpoint."""
    last_resize: float | None = None
    node_failures: Mapping[str, int] = field(default_factory=dict)
    """Failures of the run by node, since the node was last released."""
    avoided: frozenset[str] = frozenset()
    """Nodes that new pods avoid."""


@dataclass(frozen=True, slots=True)
class Elastic:
    """`spec.recovery.elastic`."""

    min_count: int
    shrink_after: float
    grow_after: float


@dataclass(frozen=True, slots=True)
class Limits:
    """The recipe's `spec.recovery`."""

    max_restarts: int
    rendezvous_timeout: float
    hang_timeout: float | None = None
    """None with `hang_automatic` false: never."""
    hang_automatic: bool = True
    avoid_after: int = 0
    """Failures on one node after which it is avoided; 0 never."""
    elastic: Elastic | None = None

    @classmethod
    def of(cls, spec: RecoverySpec) -> "Limits":
        """From the words of the recipe."""
        limits = cls.parse(spec.max_restarts, spec.rendezvous_timeout, spec.hang_timeout)
        limits = replace(limits, avoid_after=spec.nodes.avoid_after)
        if (asked := spec.elastic) is None:
            return limits
        elastic = Elastic(asked.min_count, float(asked.shrink_after), float(asked.grow_after))
        return replace(limits, elastic=elastic)

    @classmethod
    def parse(cls, max_restarts: int, rendezvous_timeout: int, hang_timeout: str) -> "Limits":
        """The limits of a run that is not elastic; a hang time-out is `auto`, `off` or `600s`."""
        seconds = float(hang_timeout[:-1]) if hang_timeout.endswith("s") else None
        return cls(max_restarts, float(rendezvous_timeout), seconds, hang_timeout == "auto")


@dataclass(frozen=True, slots=True)
class Capacity:
    """Accelerators of the run, and those that it could have: see `recovery.fitting` and `recovery.larger`."""

    asked: int
    """`spec.accelerator.count`."""
    count: int
    """What the run is laid out on now."""
    fits: int | None
    """Largest count that the planner lays out on what there is for the run: its own accelerators on nodes
    that are ready, and free ones on nodes that are ready, match and are not avoided. None: not even
    `elastic.minCount`, or unknown."""
    larger: int | None = None
    """Count above `count` that has fitted all the time since `larger_since`."""
    larger_since: float | None = None


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
    left_early: str | None = None
    """Why that word is not true: its Master ended with exit code 0 before the last iteration."""
    waiting_since: float | None = None
    """Since when pods of the gang cannot be placed, or not even made."""
    capacity: Capacity | None = None
    """None: not known; only elastic runs need it."""
    releasable: frozenset[str] = frozenset()
    """Avoided nodes that are ready and have room for a pod of the run."""
