"""The controller's part of the walks: reads everything anew, writes the status, then acts.

It may die between any two calls of the API. What it remembers is the status alone, but for the last words of
pods.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from megatron_operator.api.status import RecoveryStatus
from megatron_operator.api.times import seconds, timestamp
from megatron_operator.lifecycle import (
    Avoid,
    Capacity,
    Decision,
    Fail,
    ForceDelete,
    Heartbeat,
    History,
    Larger,
    Limits,
    Observation,
    Place,
    PodEnd,
    PodView,
    ReleaseNodes,
    Replaced,
    Resize,
    RestartGang,
    abandoned,
    checkpoint_saved,
    fitting,
    gang_restarted,
    larger,
    node_lost,
    pods_replaced,
    reported,
    resized,
    trained,
)
from megatron_operator.lifecycle.recovery_policy import decide

from tests.unit.lifecycle.simulated_cluster import GRACE, PER_NODE, Cluster, Pod

Call = Callable[[], None]


def plannable(count: int) -> bool:
    """The batch does not divide over three nodes."""
    return count != 3 * PER_NODE


@dataclass
class Status:
    """What is in the API server."""

    recovery: RecoveryStatus = field(default_factory=RecoveryStatus)
    gang: dict[int, int] | None = None
    """Uid by rank when the gang was last whole."""
    restart_before: int = 0
    iteration: int | None = None
    moved: float | None = None
    over: str | None = None


@dataclass
class Operator:
    cluster: Cluster
    asked: int
    limits: Limits
    status: Status = field(default_factory=Status)
    heard: bool = True
    """Whether the network lets it ask the pods."""
    calls_to_live: int | None = None
    ends: dict[int, PodEnd] = field(default_factory=dict)
    answered: float | None = None
    judge: Callable[[Observation, Decision], None] = lambda _seen, _decision: None

    def look(self) -> None:
        """One reconcile: as many of its calls as it lives for."""
        for call in self._calls():
            if self.calls_to_live == 0:
                self.calls_to_live, self.answered = None, None
                self.ends.clear()
                return
            call()
            if self.calls_to_live is not None:
                self.calls_to_live -= 1

    def _calls(self) -> list[Call]:
        cluster, status = self.cluster, self.status
        if status.over is not None:
            if cluster.job is None:
                return self._clear_away()
            return [cluster.delete_job] if status.over == "Failed" else []
        new = Status(**vars(status))
        elastic = new.recovery.elastic
        count = elastic.count if elastic is not None else self.asked
        avoided = frozenset(new.recovery.nodes_avoided)
        if cluster.job is None:
            return self._clear_away() if cluster.pods else [lambda: self._make(count, avoided)]
        if cluster.job.size * PER_NODE != count:
            return [cluster.delete_job]
        if cluster.succeeded:
            new.over = "Succeeded"
            return [lambda: self._write(new)]
        if cluster.job.avoids != avoided:
            return [lambda: self._patch(avoided)]
        self._note_ends()
        self._follow(new)
        old = [pod for pod in self._staying() if pod.uid <= new.restart_before]
        if old:
            return [lambda: self._write(new), *self._deletes(old)]
        seen = self._observe(new, count)
        decision = decide(seen)
        self.judge(seen, decision)
        actions = self._act(decision, new)
        return [lambda: self._write(new), *actions]

    def _clear_away(self) -> list[Call]:
        """Pods of a job that is gone must go before the next one can be made."""
        decision = abandoned(tuple(self._view(pod) for pod in self.cluster.pods), self.cluster.now)
        return self._by_force(decision) if isinstance(decision, ForceDelete) else []

    def _by_force(self, decision: ForceDelete) -> list[Call]:
        lost = [pod for pod in self.cluster.pods if pod.name in decision.pods]
        return [lambda pod=pod: self.cluster.delete_now(pod) for pod in lost]  # type: ignore[misc]

    def _write(self, new: Status) -> None:
        self.status = new

    def _make(self, count: int, avoided: frozenset[str]) -> None:
        self.cluster.make_job(count // PER_NODE, avoided)

    def _patch(self, avoided: frozenset[str]) -> None:
        if self.cluster.job is not None:
            self.cluster.job.avoids = avoided

    def _staying(self) -> list[Pod]:
        return [pod for pod in self.cluster.pods if pod.deleted_at is None]

    def _deletes(self, pods: list[Pod]) -> list[Call]:
        return [lambda pod=pod: self.cluster.delete(pod) for pod in pods]  # type: ignore[misc]

    def _note_ends(self) -> None:
        for pod in self.cluster.pods:
            if pod.end is not None and (pod.end.exit_code is not None or pod.rank not in self.ends):
                self.ends[pod.rank] = pod.end

    def _follow(self, new: Status) -> None:
        """Bring the status up to what is seen."""
        cluster, now = self.cluster, self.cluster.now
        staying = self._staying()
        assert cluster.job is not None
        speaks = self.heard and bool(cluster.alive())
        if speaks:
            self.answered = now
            new.recovery = checkpoint_saved(new.recovery, cluster.checkpoint)
            if cluster.iteration != new.iteration:
                new.iteration, new.moved = cluster.iteration, now
        unplaced = any(pod.node is None for pod in staying)
        since = (new.recovery.waiting_since or timestamp(now)) if unplaced else None
        new.recovery = new.recovery.model_copy(update={"waiting_since": since})
        self._count(new, staying)
        if speaks:
            bound = [pod.bound_at for pod in staying if pod.node is not None]
            new.recovery = reported(
                new.recovery,
                cluster.incidents,
                {pod.rank: Place(pod.name, pod.node) for pod in staying},
                bound_at=max(bound) if len(bound) == cluster.job.size else None,
                checkpoint=cluster.checkpoint,
            )
            if cluster.training and not cluster.hanging:
                new.recovery = trained(new.recovery, now, resumed_from=None if cluster.incidents else 0)

    def _count(self, new: Status, staying: list[Pod]) -> None:
        assert self.cluster.job is not None
        if new.gang is not None:
            fresh = [pod for pod in staying if pod.uid != new.gang[pod.rank]]
            if fresh:
                replaced = [Replaced(pod.name, self.ends.pop(pod.rank, None)) for pod in fresh]
                new.gang = new.gang | {pod.rank: pod.uid for pod in fresh}
                new.recovery = pods_replaced(
                    new.recovery,
                    replaced,
                    self.cluster.now,
                    checkpoint=self.cluster.checkpoint,
                    iteration=new.iteration,
                )
        elif len(staying) == self.cluster.job.size and all(pod.uid > new.restart_before for pod in staying):
            new.gang = {pod.rank: pod.uid for pod in staying}
            self.ends.clear()

    def _observe(self, new: Status, count: int) -> Observation:
        cluster, recovery = self.cluster, new.recovery
        assert cluster.job is not None
        heartbeat = None
        if self.answered is not None:
            phase = "training" if cluster.training else "rendezvous"
            heartbeat = Heartbeat(phase, new.iteration, 1.0, self.answered, new.moved)
        return Observation(
            now=cluster.now,
            size=cluster.job.size,
            pods=tuple(self._view(pod) for pod in cluster.pods),
            heartbeat=heartbeat,
            history=History(
                "run",
                recovery.restarts_since_checkpoint,
                seconds(recovery.last_restart_time),
                recovery.last_cause,
                recovery.first_cause,
                seconds(recovery.last_resize_time),
                recovery.node_failures,
                frozenset(recovery.nodes_avoided),
            ),
            limits=self.limits,
            waiting_since=seconds(recovery.waiting_since),
            capacity=self._capacity(new, count),
            releasable=self._releasable(new),
        )

    def _view(self, pod: Pod) -> PodView:
        now = self.cluster.now
        return PodView(
            pod.rank,
            pod.phase,
            pod.started,
            pod.deleted_at is not None,
            name=pod.name,
            node=pod.node,
            overdue=pod.deleted_at is not None and now > pod.deleted_at + GRACE,
            unreachable_since=self.cluster.nodes[pod.node].unreachable_since(now) if pod.node else None,
        )

    def _capacity(self, new: Status, count: int) -> Capacity | None:
        elastic = self.limits.elastic
        if elastic is None:
            return None
        cluster, recovery = self.cluster, new.recovery
        own = {pod.node for pod in cluster.pods if pod.node is not None and cluster.ready(pod.node)}
        free = set(cluster.free()) - set(recovery.nodes_avoided)
        fits = fitting(
            len(own | free) * PER_NODE,
            asked=self.asked,
            min_count=elastic.min_count,
            per_node=PER_NODE,
            accepts=plannable,
        )
        known = None
        if (fewer := recovery.elastic) is not None:
            if fewer.larger is not None:
                known = Larger(fewer.larger, seconds(fewer.larger_since) or 0.0)
            known = larger(known, count=count, fits=fits, now=cluster.now)
            update = {
                "larger": known and known.count,
                "larger_since": None if known is None else timestamp(known.since),
            }
            new.recovery = recovery.model_copy(update={"elastic": fewer.model_copy(update=update)})
        return Capacity(self.asked, count, fits, known and known.count, known and known.since)

    def _releasable(self, new: Status) -> frozenset[str]:
        waiting = [pod.avoids for pod in self._staying() if pod.node is None]
        avoided = frozenset(new.recovery.nodes_avoided).union(*waiting)
        return frozenset(avoided.intersection(self.cluster.free()))

    def _act(self, decision: Decision, new: Status) -> list[Call]:
        cluster, now, recovery = self.cluster, self.cluster.now, new.recovery
        match decision:
            case ForceDelete(names, cause):
                lost = [pod for pod in cluster.pods if pod.name in names]
                told = [Replaced(pod.name, PodEnd(cause, node=pod.node)) for pod in lost]
                new.recovery = node_lost(recovery, told, cause, now, iteration=new.iteration)
                return self._by_force(decision)
            case Avoid(nodes, names, _):
                avoided = frozenset(recovery.nodes_avoided).union(nodes)
                new.recovery = recovery.model_copy(update={"nodes_avoided": sorted(avoided)})
                moving = [pod for pod in cluster.pods if pod.name in names]
                if moving:
                    new.gang = None
                return [lambda: self._patch(avoided), *self._deletes(moving)]
            case ReleaseNodes(nodes, _):
                avoided = frozenset(recovery.nodes_avoided).difference(nodes)
                failures = {node: n for node, n in recovery.node_failures.items() if node not in nodes}
                update = {"nodes_avoided": sorted(avoided), "node_failures": failures}
                new.recovery = recovery.model_copy(update=update)
                new.gang = None
                waiting = [pod for pod in self._staying() if pod.node is None]
                return [lambda: self._patch(avoided), *self._deletes(waiting)]
            case Resize(count, cause):
                new.recovery = resized(recovery, count, self.asked, cause, now, iteration=new.iteration)
                new.gang, new.restart_before = None, 0
                return [cluster.delete_job]
            case RestartGang(cause):
                new.recovery = gang_restarted(
                    recovery, cause, now, checkpoint=cluster.checkpoint, iteration=new.iteration
                )
                new.gang, new.restart_before = None, cluster.uids
                return self._deletes(self._staying())
            case Fail():
                new.over = "Failed"
                return [cluster.delete_job]
            case _:
                return []


def waits_for_capacity(
    cluster: Cluster, recovery: RecoveryStatus, limits: Limits, plannable: Callable[[int], bool]
) -> bool:
    """Whether pods wait, and nothing that the recipe allows could place them."""
    waiting = [pod for pod in cluster.pods if pod.node is None]
    if not waiting or any(set(cluster.free()) - pod.avoids for pod in waiting):
        return False
    if any(set(cluster.free()) & (pod.avoids | set(recovery.nodes_avoided)) for pod in waiting):
        return False
    if limits.elastic is None or cluster.job is None:
        return True
    placed = sum(pod.node is not None and cluster.ready(pod.node) for pod in cluster.pods) * PER_NODE
    fewest = limits.elastic.min_count
    return not any(plannable(count) for count in range(fewest, placed + 1, PER_NODE))
