"""The recovery policy: wait, replace pods, avoid a node, resize, restart the gang, or fail."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from megatron_operator.lifecycle.backoff import backoff
from megatron_operator.lifecycle.hang_detection import answered_recently, no_progress
from megatron_operator.lifecycle.node_choice import places_left
from megatron_operator.lifecycle.observation import (
    HEARTBEAT_TRAINING,
    MaintenanceMove,
    Observation,
    PodPhase,
    PodView,
)

UNREACHABLE_PATIENCE: Final = 30.0
"""Seconds that a node may be unreachable, after Kubernetes detected it (50 s by default), before its pods are
force-deleted: a kubelet that was only restarted is back by then."""
AVOIDED_PATIENCE: Final = 300.0
"""Seconds that pods wait for capacity before avoided nodes are released."""
DOMAIN_PATIENCE: Final = 120.0
"""Seconds that pods wait for a node of their topology domain before all of them move to another domain."""
RESIZE_INTERVAL: Final = 300.0
"""Least seconds between two resizes."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing now."""

    reason: str
    seconds: float | None = None
    """Decide again after that long; None: when something changes."""


@dataclass(frozen=True, slots=True)
class RestartGang:
    """Delete all pods, or a job that ended early; the new ones continue from the checkpoint."""

    cause: str
    hang: bool = False
    """Whether the pods hang."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The budget is spent: fail the run and release its accelerators."""

    cause: str


@dataclass(frozen=True, slots=True)
class ForceDelete:
    """Delete pods with a grace period of 0: no kubelet ends them, so the job would never replace them."""

    pods: tuple[str, ...]
    """Full names."""
    cause: str


@dataclass(frozen=True, slots=True)
class Avoid:
    """Avoid these nodes: new pods of the job are not scheduled there."""

    nodes: tuple[str, ...]
    pods: tuple[str, ...]
    """The gang's pods on these nodes that do not train; they are deleted so that they move."""
    cause: str


@dataclass(frozen=True, slots=True)
class ReleaseNodes:
    """No longer avoid these nodes, and reset their failures: a bad node is better than none."""

    nodes: tuple[str, ...]
    cause: str


@dataclass(frozen=True, slots=True)
class Resize:
    """Continue on another count of accelerators; the pods save a checkpoint as they end."""

    count: int
    cause: str


@dataclass(frozen=True, slots=True)
class Move:
    """Leave nodes before their maintenance: the pods there save a checkpoint as they end."""

    move: MaintenanceMove


@dataclass(frozen=True, slots=True)
class ChangeDomain:
    """Give up all places, and continue in another topology domain."""

    cause: str


Decision = Wait | RestartGang | Fail | ForceDelete | Avoid | ReleaseNodes | Resize | Move | ChangeDomain


def decide(observation: Observation) -> Decision:
    """What to do about a run: the decision of the first of `RULES` that has one.

    The trainer restarts ranks and the training-operator replaces lost pods. What they cannot do is decided
    here: force-delete the pods of lost nodes, avoid bad nodes, restart a gang that runs without progress,
    leave nodes before their maintenance, resize an elastic run. Every observation has a decision.
    """
    for rule in RULES:
        decision = rule(observation)
        if decision is not None:
            return decision
    return Wait("the run trains")


def _job_ended(observation: Observation) -> Decision | None:
    """A job that ended early is re-created; any other stays as it is."""
    if not observation.ended:
        return None
    if observation.early_exit is not None:
        return _restart(observation, observation.early_exit)
    return Wait("the job has ended")


def _pods_deleting(observation: Observation) -> Decision | None:
    """While pods are being deleted, the only action is to force-delete those that no kubelet ends."""
    pods = tuple(pod for pod in observation.pods if pod.deleting)
    if not pods:
        return None
    if any(pod.unreachable for pod in pods):
        return force_delete_or_wait(pods, observation.now)
    return Wait("pods are being deleted")


def _over_budget(observation: Observation) -> Fail | None:
    """Restarts of any kind have used more than the budget."""
    history = observation.history
    if history.restarts_since_checkpoint <= observation.limits.max_restarts:
        return None
    return Fail(_budget_spent(observation, history.last_cause))


def force_delete_or_wait(pods: tuple[PodView, ...], now: float) -> ForceDelete | Wait:
    """Force-delete pods whose node has been unreachable for `UNREACHABLE_PATIENCE` seconds.

    Also for pods left over from a deleted job: no job of the same name can start while they exist.
    """
    abandoned: list[PodView] = []
    soonest = UNREACHABLE_PATIENCE
    for pod in pods:
        if pod.unreachable_since is None:
            continue
        left = pod.unreachable_since + UNREACHABLE_PATIENCE - now
        if left <= 0 or pod.overdue:
            abandoned.append(pod)
        else:
            soonest = min(soonest, left)
    if not abandoned:
        return Wait("pods are being deleted, or their node is unreachable", soonest)
    nodes = ", ".join(sorted({pod.node or "a node that is gone" for pod in abandoned}))
    return ForceDelete(tuple(pod.name for pod in abandoned), f"{nodes}: unreachable")


def _restart(observation: Observation, cause: str, *, hang: bool = False) -> Decision:
    """Restart the gang, unless the budget is spent or the last restart was too recent."""
    history, limits = observation.history, observation.limits
    if history.restarts_since_checkpoint >= limits.max_restarts:
        return Fail(_budget_spent(observation, cause))
    pause = backoff(history.run_id, history.restarts_since_checkpoint)
    # Never longer than the pause, even if the operator's clock was set back.
    left = min((history.last_restart or 0.0) + pause - observation.now, pause)
    if left > 0:
        return Wait(f"back-off of {pause:.0f} s before the next restart", left)
    return RestartGang(cause, hang)


def _bad_nodes(observation: Observation) -> Avoid | None:
    """Nodes with proven faults, and those lost `recovery.nodes.avoidAfter` times, are avoided from now on."""
    bad = observation.node_choice.avoid
    if not bad:
        return None
    times = ", ".join(f"{node} {why}" for node, why in bad.items())
    moving = tuple(
        pod.name
        for pod in observation.pods
        if pod.node in bad and not pod.unreachable and not _trains(observation)
    )
    return Avoid(tuple(bad), moving, times)


def _cleared_nodes(observation: Observation) -> ReleaseNodes | None:
    """Avoided nodes against which there is no evidence any longer are released."""
    if not observation.history.cleared:
        return None
    return ReleaseNodes(
        tuple(sorted(observation.history.cleared)), "there is no evidence against it any longer"
    )


def _unreachable(observation: Observation) -> Decision | None:
    """Pods on unreachable nodes are force-deleted after `UNREACHABLE_PATIENCE`."""
    if not any(pod.unreachable for pod in observation.pods):
        return None
    return force_delete_or_wait(observation.pods, observation.now)


def _without_capacity(observation: Observation) -> Decision | None:
    """Pods cannot be scheduled: change the topology domain, release avoided nodes, shrink, or wait."""
    if observation.waiting_since is None:
        return None
    waited = observation.now - observation.waiting_since
    if observation.in_another_domain:
        if waited < DOMAIN_PATIENCE:
            return Wait("pods wait for capacity of their topology domain", DOMAIN_PATIENCE - waited)
        return ChangeDomain(
            f"no topology domain that its pods can use has had room for all {observation.size} for "
            f"{waited:.0f} s, and another has"
        )
    later: list[float] = []
    if observation.releasable:
        nodes, room = tuple(sorted(observation.releasable)), places_left(observation)
        if room is not None and room < observation.size:
            return ReleaseNodes(nodes, f"the other nodes have room for {room} of {observation.size} pods")
        if waited >= AVOIDED_PATIENCE:
            return ReleaseNodes(nodes, f"pods could not be scheduled elsewhere for {waited:.0f} s")
        later.append(AVOIDED_PATIENCE - waited)
    elastic, capacity = observation.limits.elastic, observation.capacity
    if elastic is not None and capacity is not None and capacity.fits is not None:
        fits = capacity.fits
        if fits < capacity.count:
            left = max(
                elastic.shrink_after - waited,
                (observation.history.last_resize or 0.0) + RESIZE_INTERVAL - observation.now,
            )
            if left <= 0:
                cause = (
                    f"only {fits} of {capacity.requested} accelerators have been available for {waited:.0f} s"
                )
                return Resize(fits, cause)
            later.append(left)
    return Wait("pods wait for capacity", min(later, default=None))


def _incomplete(observation: Observation) -> Wait | None:
    """Whether the run makes progress is only known once all pods of the gang run."""
    if len(observation.pods) < observation.size:
        return Wait("pods are being created")
    if any(pod.phase is not PodPhase.RUNNING or pod.started is None for pod in observation.pods):
        return Wait("pods are starting")
    return None


def _hang(observation: Observation) -> Decision | None:
    """A gang that runs without progress is restarted."""
    found = no_progress(observation, _running_since(observation))
    return None if found is None else _restart(observation, found.cause, hang=found.hang)


def _maintenance(observation: Observation) -> Move | None:
    """A run that trains leaves nodes whose maintenance is announced; any other cannot save."""
    move = observation.maintenance
    if move is None or move.obstacle is not None or not _trains(observation):
        return None
    return Move(move)


def _running_since(observation: Observation) -> float:
    """When the last pod of a running gang started, seconds since the epoch."""
    return max(pod.started or 0.0 for pod in observation.pods)


def _grow(observation: Observation) -> Decision | None:
    """Use accelerators that have been free for long enough, while the run trains."""
    elastic, capacity = observation.limits.elastic, observation.capacity
    if elastic is None or capacity is None or capacity.larger is None or capacity.larger_since is None:
        return None
    if capacity.fits is None or capacity.fits < capacity.larger or capacity.larger <= capacity.count:
        return None
    history = observation.history
    due = max(
        capacity.larger_since + elastic.grow_after,
        (history.last_resize or 0.0) + RESIZE_INTERVAL,
        (history.last_restart or 0.0) + elastic.grow_after,
    )
    if observation.now < due:
        return Wait("the run trains; more accelerators are free", due - observation.now)
    heartbeat = observation.heartbeat
    if (
        heartbeat is None
        or not _trains(observation)
        or (heartbeat.moved or 0.0) < _running_since(observation)
    ):
        return None
    free = observation.now - capacity.larger_since
    return Resize(
        capacity.larger,
        f"{capacity.larger} of {capacity.requested} accelerators have been free for {free:.0f} s",
    )


def _trains(observation: Observation) -> bool:
    """Whether the gang as it is now has just reported that it trains."""
    heartbeat = observation.heartbeat
    if heartbeat is None or heartbeat.phase != HEARTBEAT_TRAINING or not answered_recently(observation):
        return False
    whole = len(observation.pods) == observation.size
    return whole and all(
        pod.phase is PodPhase.RUNNING and pod.started is not None and pod.started <= heartbeat.answered
        for pod in observation.pods
    )


def _budget_spent(observation: Observation, cause: str | None) -> str:
    history = observation.history
    restarts, allowed = history.restarts_since_checkpoint, observation.limits.max_restarts
    first = history.first_cause or cause
    why = f"; first cause: {first}" if first else ""
    if cause and cause != first:
        why += f"; last cause: {cause}"
    return f"{restarts} restarts brought no new checkpoint and recovery.maxRestarts is {allowed}{why}"


Rule = Callable[[Observation], Decision | None]
"""None: the rule does not apply to the observation."""

RULES: Final[tuple[Rule, ...]] = (
    _job_ended,
    _pods_deleting,
    _over_budget,
    _cleared_nodes,
    _bad_nodes,
    _unreachable,
    _without_capacity,
    _incomplete,
    _hang,
    _maintenance,
    _grow,
)
"""In order: a rule may rely on those before it not applying."""
