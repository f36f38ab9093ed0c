"""What a reconcile leaves to do once the status is written. Every action may be executed twice."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from megatron_operator.lifecycle.object_metadata import Object

SOON: Final = 1.0
"""Seconds until a state that changes by itself is checked again."""
LATER: Final = 5.0
"""Seconds until a state that somebody else must change is checked again."""


@dataclass(frozen=True, slots=True)
class AvoidNodes:
    """Patch the job's pod templates so that new pods avoid exactly these nodes."""

    job: Object
    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class PinImage:
    """Patch the job's pod templates so that new pods run this image, given by digest."""

    job: Object
    image: str


@dataclass(frozen=True, slots=True)
class SetPriorityClass:
    """Patch the job's pod templates so that new pods have this PriorityClass."""

    job: Object
    name: str


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete a training job; its pods end with it."""

    job: Object


@dataclass(frozen=True, slots=True)
class DeleteRuntime:
    """Delete the TrainingRuntime of a TrainJob, which goes once the job has."""

    job: Object


@dataclass(frozen=True, slots=True)
class DeleteStageJobs:
    """Delete the recipe's Jobs that are complete: imports, preparation, checks, exports."""

    namespace: str
    recipe: str
    uid: str
    """The recipe's."""


@dataclass(frozen=True, slots=True)
class DeletePods:
    """Delete pods so that the job's controller re-creates them."""

    pods: tuple[Object, ...]
    saves: bool = False
    """Whether their gang trains: then they keep their grace period, in which it saves a checkpoint."""


@dataclass(frozen=True, slots=True)
class DeleteUnboundPods:
    """Delete pods made from an outdated template; one that has been bound to a node meanwhile stays."""

    pods: tuple[Object, ...]


@dataclass(frozen=True, slots=True)
class ForceDeletePods:
    """Delete pods with a grace period of 0: their kubelet will never report that they have ended."""

    pods: tuple[Object, ...]


@dataclass(frozen=True, slots=True)
class ReplacePods:
    """Have pods replaced that have ended or are being deleted, where the job's controller waits to do so.

    Their grace period is not shortened.
    """

    pods: tuple[Object, ...]


Action = (
    AvoidNodes
    | PinImage
    | SetPriorityClass
    | DeleteJob
    | DeleteRuntime
    | DeleteStageJobs
    | DeletePods
    | DeleteUnboundPods
    | ForceDeletePods
    | ReplacePods
)


@dataclass(frozen=True, slots=True)
class Requeue:
    """When to reconcile again without an event, and what the recipe waits for."""

    after: float
    """Seconds."""
    reason: str


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a reconcile: actions in the order in which they run, and when to reconcile again."""

    actions: tuple[Action, ...] = ()
    requeue: Requeue | None = None
    decision: str | None = None
    """What the actions carry out, by its name in the metric; None: each of them is a decision of its own."""
    discarded: bool = False
    """The status is not written and nothing is done: what it depends on is not known yet."""

    @property
    def delay(self) -> float | None:
        """Seconds until the next reconcile; None to wait for an event."""
        return None if self.requeue is None else self.requeue.after

    def within(self, seconds: float | None, reason: str) -> "Result":
        """The same result, but reconciled again after at most `seconds`; None changes nothing."""
        if seconds is None or (self.requeue is not None and self.requeue.after <= seconds):
            return self
        return replace(self, requeue=Requeue(seconds, reason))


DONE: Final = Result()
"""Nothing to do until the next event."""
DISCARDED: Final = Result(discarded=True)
"""What was read is outdated: from a cache, it is read from the API server; otherwise nothing is to do."""


def wait(seconds: float, reason: str, actions: Sequence[Action] = ()) -> Result:
    """Run `actions`, then reconcile again after `seconds`."""
    return Result(tuple(actions), Requeue(seconds, reason))
