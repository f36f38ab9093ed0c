"""The one decision: wait, replace pods, avoid a node, resize, start the gang anew, or give up."""

from dataclasses import dataclass
from typing import Final

from megatron_operator.lifecycle.backoff import backoff
from megatron_operator.lifecycle.hang_detection import heard, stall
from megatron_operator.lifecycle.observation import HEARTBEAT_TRAINING, Observation, PodPhase, PodView

UNREACHABLE_PATIENCE: Final = 30.0
"""Seconds that a node may be unreachable, after Kubernetes noticed it (40 s and more), before its pods are
given up: a kubelet that was only restarted is back by then."""
AVOIDED_PATIENCE: Final = 300.0
"""Seconds that pods wait for a place before nodes that are avoided are taken again."""
RESIZE_PAUSE: Final = 300.0
"""Least seconds between two resizes."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing is to be done."""

    why: str
    seconds: float | None = None
    """Look again after that long; None: when something changes."""


@dataclass(frozen=True, slots=True)
class RestartGang:
    """Delete all pods of the gang, or the job that has ended without need; made anew, they go on from the
    checkpoint."""

    cause: str


@dataclass(frozen=True, slots=True)
class Fail:
    """The budget is spent: release the accelerators."""

    cause: str


@dataclass(frozen=True, slots=True)
class ForceDelete:
    """Delete pods with a grace period of 0: no kubelet ends them, so the job would never replace them."""

    pods: tuple[str, ...]
    """Whole names."""
    cause: str


@dataclass(frozen=True, slots=True)
class Avoid:
    """Remember these nodes as avoided and have the job's pods made from now on keep off them."""

    nodes: tuple[str, ...]
    pods: tuple[str, ...]
    """The gang's pods that are on them already and do not train: delete them, so that they move."""
    cause: str


@dataclass(frozen=True, slots=True)
class ReleaseNodes:
    """Avoid these nodes no longer, and forget their failures: a bad node is better than none."""

    nodes: tuple[str, ...]
    cause: str


@dataclass(frozen=True, slots=True)
class Resize:
    """Lay the run out on another count of accelerators; its pods save a checkpoint as they end."""

    count: int
    cause: str


Decision = Wait | RestartGang | Fail | ForceDelete | Avoid | ReleaseNodes | Resize


def decide(observation: Observation) -> Decision:
    """Cheapest first: ranks are restarted by the trainer, lost pods replaced by the training-operator.

    What they cannot do is done here: pods of dead nodes are taken away, bad nodes avoided, a gang that is all
    there and yet makes no progress is started anew, an elastic run is laid out on what there is.

    Total: every observation has a decision. None acts while pods are being deleted, but for those that nobody
    else can end.
    """
    history, limits = observation.history, observation.limits
    if observation.ended and observation.left_early is not None:
        return _restart(observation, observation.left_early)
    if observation.ended:
        return Wait("the job has ended")
    if any(pod.deleting for pod in observation.pods):
        return _deleting(observation)
    if history.restarts_since_checkpoint > limits.max_restarts:
        return Fail(_spent(observation, history.last_cause))
    if (bad := _bad_nodes(observation)) is not None:
        return bad
    if any(pod.unreachable for pod in observation.pods):
        return abandoned(observation.pods, observation.now)
    if observation.waiting_since is not None:
        return _without_place(observation, observation.waiting_since)
    if len(observation.pods) < observation.size:
        return Wait("pods are being made")
    if any(pod.phase is not PodPhase.RUNNING or pod.started is None for pod in observation.pods):
        return Wait("not all pods run")
    together = max(pod.started or 0.0 for pod in observation.pods)
    cause = stall(observation, together)
    if cause is None:
        return _grow(observation, together) or Wait("training goes on")
    return _restart(observation, cause)


def _restart(observation: Observation, cause: str) -> Decision:
    """Start the gang anew, unless the budget is spent or the last restart was just now."""
    history, limits = observation.history, observation.limits
    if history.restarts_since_checkpoint >= limits.max_restarts:
        return Fail(_spent(observation, cause))
    pause = backoff(history.run_id, history.restarts_since_checkpoint)
    # Never longer than the pause, should the operator's clock have been set back.
    left = min((history.last_restart or 0.0) + pause - observation.now, pause)
    if left > 0:
        return Wait(f"back-off of {pause:.0f} s before the next restart", left)
    return RestartGang(cause)


def _deleting(observation: Observation) -> Decision:
    pods = tuple(pod for pod in observation.pods if pod.deleting)
    if any(pod.unreachable for pod in pods):
        return abandoned(pods, observation.now)
    return Wait("pods are being deleted")


def abandoned(pods: tuple[PodView, ...], now: float) -> ForceDelete | Wait:
    """Give up pods whose node has been away for long: the grace period waits for a kubelet that is gone.

    Also for pods that a job left when it was deleted: while one is there, no other job can have its name.
    """
    ripe: list[PodView] = []
    soonest = UNREACHABLE_PATIENCE
    for pod in pods:
        if pod.unreachable_since is None:
            continue
        left = pod.unreachable_since + UNREACHABLE_PATIENCE - now
        if left <= 0 or pod.overdue:
            ripe.append(pod)
        else:
            soonest = min(soonest, left)
    if not ripe:
        return Wait("pods are being deleted, or their node is unreachable", soonest)
    nodes = ", ".join(sorted({pod.node or "a node that is gone" for pod in ripe}))
    return ForceDelete(tuple(pod.name for pod in ripe), f"{nodes}: unreachable")


def _bad_nodes(observation: Observation) -> Avoid | None:
    allowed, history = observation.limits.avoid_after, observation.history
    if not allowed:
        return None
    bad = {
        node: count
        for node, count in sorted(history.node_failures.items())
        if count >= allowed and node not in history.avoided
    }
    if not bad:
        return None
    times = ", ".join(f"{node} failed {count} times" for node, count in bad.items())
    moving = tuple(
        pod.name
        for pod in observation.pods
        if pod.node in bad and not pod.unreachable and not _trains(observation)
    )
    return Avoid(tuple(bad), moving, f"{times} (recovery.nodes.avoidAfter {allowed})")


def _without_place(observation: Observation, since: float) -> Decision:
    """Pods have no place: take avoided nodes again, go on with fewer, or wait."""
    waited = observation.now - since
    later: list[float] = []
    if observation.releasable:
        if waited >= AVOIDED_PATIENCE:
            nodes = tuple(sorted(observation.releasable))
            return ReleaseNodes(nodes, f"pods could not be placed elsewhere for {waited:.0f} s")
        later.append(AVOIDED_PATIENCE - waited)
    elastic, capacity = observation.limits.elastic, observation.capacity
    if elastic is not None and capacity is not None and _fewer(capacity.fits, capacity.count):
        ripe = max(
            elastic.shrink_after - waited,
            (observation.history.last_resize or 0.0) + RESIZE_PAUSE - observation.now,
        )
        if ripe <= 0:
            assert capacity.fits is not None, "_fewer says so"
            return Resize(
                capacity.fits,
                f"{capacity.fits} of {capacity.asked} accelerators could be had for {waited:.0f} s",
            )
        later.append(ripe)
    return Wait("pods wait for a place", min(later, default=None))


def _fewer(fits: int | None, count: int) -> bool:
    return fits is not None and fits < count


def _grow(observation: Observation, together: float) -> Decision | None:
    """Take what has been free for long enough, while the training goes on and nothing else is up."""
    elastic, capacity = observation.limits.elastic, observation.capacity
    if elastic is None or capacity is None or capacity.larger is None or capacity.larger_since is None:
        return None
    if capacity.fits is None or capacity.fits < capacity.larger or capacity.larger <= capacity.count:
        return None
    history = observation.history
    ripe = max(
        capacity.larger_since + elastic.grow_after,
        (history.last_resize or 0.0) + RESIZE_PAUSE,
        (history.last_restart or 0.0) + elastic.grow_after,
    )
    if observation.now < ripe:
        return Wait("training goes on; more accelerators are free", ripe - observation.now)
    heartbeat = observation.heartbeat
    if heartbeat is None or not _trains(observation) or (heartbeat.moved or 0.0) < together:
        return None
    free = observation.now - capacity.larger_since
    return Resize(
        capacity.larger, f"{capacity.larger} of {capacity.asked} accelerators have been free for {free:.0f} s"
    )


def _trains(observation: Observation) -> bool:
    """Whether the gang as it is now was heard training just now."""
    heartbeat = observation.heartbeat
    if heartbeat is None or heartbeat.phase != HEARTBEAT_TRAINING or not heard(observation):
        return False
    whole = len(observation.pods) == observation.size
    return whole and all(
        pod.phase is PodPhase.RUNNING and pod.started is not None and pod.started <= heartbeat.answered
        for pod in observation.pods
    )


def _spent(observation: Observation, cause: str | None) -> str:
    history = observation.history
    restarts, allowed = history.restarts_since_checkpoint, observation.limits.max_restarts
    first = history.first_cause or cause
    why = f"; first cause: {first}" if first else ""
    if cause and cause != first:
        why += f"; last cause: {cause}"
    return f"{restarts} restarts brought no new checkpoint and recovery.maxRestarts is {allowed}{why}"
