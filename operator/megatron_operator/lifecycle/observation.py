"""What the recovery policy decides on. Times are seconds since the epoch, durations seconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from megatron_operator.api.recipe import RecoverySpec
from megatron_operator.lifecycle.node_choice import NodeChoice, choose_nodes

HEARTBEAT_TRAINING = "training"
HEARTBEAT_RENDEZVOUS = frozenset({"starting", "rendezvous"})
HEARTBEAT_ENDED = frozenset({"finished", "failed"})


class PodPhase(StrEnum):
    """`status.phase` of a pod."""

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
    """When its container started."""
    deleting: bool = False
    name: str = ""
    """The full name, by which decisions refer to the pod."""
    node: str | None = None
    """None while it is not bound."""
    overdue: bool = False
    """Whether it still exists after its grace period."""
    unreachable_since: float | None = None
    """Since when its node has not been Ready; 0.0 when the node is gone."""

    @property
    def unreachable(self) -> bool:
        """Whether no kubelet can end the pod."""
        return self.unreachable_since is not None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What the pods last reported about the training."""

    phase: str
    iteration: int | None
    step_seconds: float | None
    answered: float
    """When a pod last answered."""
    moved: float | None
    """When the iteration was last seen to change."""
    unmoved: float | None = None
    """Seconds for which pods answered without a change, by a monotonic clock; None: not measured."""


@dataclass(frozen=True, slots=True)
class History:
    """What the status records of earlier restarts."""

    run_id: str
    restarts_since_checkpoint: int = 0
    last_restart: float | None = None
    """When the operator last restarted all pods, Unix seconds."""
    last_cause: str | None = None
    first_cause: str | None = None
    """Cause of the first restart since the newest checkpoint."""
    last_resize: float | None = None
    """When the operator last changed the number of accelerators, Unix seconds."""
    node_failures: Mapping[str, int] = field(default_factory=dict)
    """Failures of the run by node that the node's hardware caused, since the node was last released."""
    proven: Mapping[str, str] = field(default_factory=dict)
    """Nodes with evidence of which one failure is enough, and that evidence."""
    avoided: frozenset[str] = frozenset()
    """Nodes that new pods avoid."""
    cleared: frozenset[str] = frozenset()
    """Avoided nodes against which there is no evidence any longer."""


@dataclass(frozen=True, slots=True)
class Elastic:
    """`spec.recovery.elastic`."""

    min_count: int
    shrink_after: float
    grow_after: float


@dataclass(frozen=True, slots=True)
class Limits:
    """`spec.recovery`, with durations in seconds."""

    max_restarts: int
    rendezvous_timeout: float
    hang_timeout: float | None = None
    """None with `hang_automatic` false: hangs are not detected."""
    hang_automatic: bool = True
    avoid_after: int = 0
    """Losses of one node after which it is avoided; 0 means never."""
    elastic: Elastic | None = None

    @classmethod
    def of(cls, spec: RecoverySpec) -> "Limits":
        """The limits of a recipe."""
        limits = cls.parse(spec.max_restarts, spec.rendezvous_timeout, spec.hang_timeout)
        limits = replace(limits, avoid_after=spec.nodes.avoid_after)
        if (requested := spec.elastic) is None:
            return limits
        elastic = Elastic(requested.min_count, float(requested.shrink_after), float(requested.grow_after))
        return replace(limits, elastic=elastic)

    @classmethod
    def parse(cls, max_restarts: int, rendezvous_timeout: int, hang_timeout: str) -> "Limits":
        """The limits of a run that is not elastic. `hang_timeout` is `auto`, `off` or for example `600s`."""
        seconds = float(hang_timeout[:-1]) if hang_timeout.endswith("s") else None
        return cls(max_restarts, float(rendezvous_timeout), seconds, hang_timeout == "auto")


@dataclass(frozen=True, slots=True)
class ElasticCapacity:
    """Accelerators of an elastic run, and those that it could have: see lifecycle/elastic.py."""

    requested: int
    """`spec.accelerator.count`."""
    count: int
    """Accelerators that the run has."""
    fits: int | None
    """Largest count for which the planner has a plan on the accelerators available to the run: its own on
    ready nodes, and free ones on ready and matching nodes that are not avoided. None: fewer than
    `elastic.minCount`, or not known."""
    larger: int | None = None
    """A count above `count` that has been available since `larger_since`."""
    larger_since: float | None = None


@dataclass(frozen=True, slots=True)
class AvoidanceLimits:
    """How many nodes a run may begin to avoid."""

    count: int
    """Number of nodes, by the platform's limits for a share of the pool and for an hour."""
    places: Mapping[str, int] | None = None
    """Pods of the run that each ready and matching node has room for when it is empty; None: not known."""
    cap: str = "platform.badNodes allows no more"
    """Which setting of the platform determines `count`."""


@dataclass(frozen=True, slots=True)
class Room:
    """Places on the nodes of which no maintenance is announced."""

    pods: int
    """Pods of the run that fit there, with its own counted as free and those that others wait for taken."""
    pool: int
    """Number of all nodes that match the run, free or not."""
    announced: Mapping[str, str] = field(default_factory=dict)
    """Other nodes that have free places, or are avoided as a precaution, but announce maintenance, and what
    announces it; those that go first come first. New pods should avoid them too."""


@dataclass(frozen=True, slots=True)
class MaintenanceMove:
    """A move of the run off nodes whose maintenance is announced."""

    leaving: Mapping[str, str]
    """Nodes with pods of the run, and what announces their maintenance."""
    avoid: Mapping[str, str]
    """These nodes, and those that go first of the others that announce it, where pods could be placed."""
    obstacle: str | None = None
    """Why the run stays; None: it may move."""
    dropped: frozenset[str] = frozenset()
    """Nodes that were avoided as a precaution, and are no longer: others go first."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Accelerators that a run could have."""

    elastic: ElasticCapacity | None = None
    """None: not known, or the run is not elastic."""
    releasable_nodes: frozenset[str] = frozenset()
    """Avoided nodes that are ready and have free accelerators for a pod of the run."""
    places: Mapping[str, int] | None = None
    """Pods that each node has room for, as in AvoidanceLimits."""
    room: Room | None = None
    """None: not known, or no node of the run announces maintenance."""
    in_another_domain: bool = False
    """Whether all pods have room in a topology domain that they must share, but not in that of the pods that
    are placed or, while none is, in one that the job does not avoid."""


@dataclass(frozen=True)
class Observation:
    """A run's gang at one moment."""

    now: float
    size: int
    """Number of pods in the gang."""
    pods: tuple[PodView, ...]
    heartbeat: Heartbeat | None
    history: History
    limits: Limits
    ended: bool = False
    """Whether the job is in phase Succeeded or Failed."""
    early_exit: str | None = None
    """Why a job in phase Succeeded is not complete: its Master exited before the last iteration."""
    waiting_since: float | None = None
    """Since when pods of the gang cannot be scheduled or created."""
    capacity: ElasticCapacity | None = None
    """None: not known, or the run is not elastic."""
    releasable: frozenset[str] = frozenset()
    """Avoided nodes that are ready and have free accelerators for a pod of the run, and whose maintenance is
    not about to start."""
    in_another_domain: bool = False
    """As in Capacity."""
    avoidance: AvoidanceLimits | None = None
    """None: no limit."""
    maintenance: MaintenanceMove | None = None
    """None: no node of the run announces maintenance, or nothing can be decided now."""

    @cached_property
    def node_choice(self) -> NodeChoice:
        """Which bad nodes to avoid and which to keep; the policy and the status read the same choice."""
        return choose_nodes(self)
