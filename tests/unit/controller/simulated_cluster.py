"""A simulated cluster with one training run: nodes, kubelets, scheduler, training-operator and trainer.

Each acts with the delays of the real one. One pod fills one node. A pod on an unreachable node stays in the
API until it is force-deleted.
"""

from dataclasses import dataclass, field
from typing import Any

from megatron_contract.exit_codes import ExitCode
from megatron_operator.lifecycle.observation import PodPhase
from megatron_operator.lifecycle.pod_termination import PodEnd

PER_NODE = 8
"""Accelerators of a node."""
GRACE = 60.0
"""Grace period of a pod, seconds."""
NODE_MONITOR_GRACE = 40.0
"""Seconds until Kubernetes marks a node without heartbeats as unreachable."""
EVICTION_DELAY = 30.0
"""Seconds from then until its pods are evicted: the pods' toleration."""
START = 10.0
"""Seconds from binding to running."""
SHUTDOWN = 30.0
"""Seconds that a pod takes to save a checkpoint and end."""
RENDEZVOUS = 600.0
"""Time-out of the rendezvous, seconds."""
SAVE_INTERVAL = 50
TOTAL = 2000
"""Iterations of the run, one per second."""


@dataclass
class Node:
    name: str
    down_since: float | None = None
    taken: bool = False
    """Whether pods of other users fill it."""
    announced: bool = False
    """Whether a condition announces its maintenance."""
    maintenance_at: float | None = None
    """When its maintenance starts, which a label announces."""

    def unreachable_since(self, now: float) -> float | None:
        if self.down_since is None or now - self.down_since < NODE_MONITOR_GRACE:
            return None
        return self.down_since + NODE_MONITOR_GRACE


@dataclass
class Pod:
    uid: int
    rank: int
    avoids: frozenset[str]
    job: int = 0
    """UID of the job that created it."""
    created: float = 0.0
    node: str | None = None
    bound_at: float = 0.0
    phase: PodPhase = PodPhase.PENDING
    started: float | None = None
    deleted_at: float | None = None
    ended_at: float | None = None
    end: PodEnd | None = None
    unkillable: bool = False
    """Whether its kubelet cannot end it."""

    @property
    def name(self) -> str:
        return f"worker-{self.rank}"


@dataclass
class Job:
    uid: int
    size: int
    avoids: frozenset[str]


@dataclass
class Cluster:
    """The state of everything; `pass_time` lets every component act."""

    nodes: dict[str, Node]
    now: float = 1_800_000_000.0
    job: Job | None = None
    pods: list[Pod] = field(default_factory=list)
    training_operator: bool = True
    poisoned: bool = False
    """Whether every start fails before its first step."""
    uids: int = 0
    # State of the trainer; checkpoints survive pods.
    gang: tuple[int, ...] = ()
    training: bool = False
    hanging: bool = False
    evaluating: bool = False
    """Whether ranks that train evaluate instead of going on."""
    generation: int = 0
    iteration: int = 0
    checkpoint: int = 0
    resumed_from: int = 0
    last_step: float | None = None
    broken: dict[str, Any] | None = None
    rendezvous_since: float = 0.0
    incidents: list[dict[str, Any]] = field(default_factory=list)
    succeeded: bool = False
    disturbances: int = 0
    """Number of events that may cost a restart: faults, drains, pods that stopped waiting for peers."""

    def up(self, name: str | None) -> bool:
        return name is not None and self.nodes[name].down_since is None

    def ready(self, name: str) -> bool:
        return self.nodes[name].unreachable_since(self.now) is None

    def free(self) -> list[str]:
        """Nodes that a pod could be bound to."""
        used = {pod.node for pod in self.pods}
        return [
            n.name for n in self.nodes.values() if self.ready(n.name) and not n.taken and n.name not in used
        ]

    def alive(self) -> list[Pod]:
        """Pods whose container runs."""
        return [pod for pod in self.pods if pod.phase is PodPhase.RUNNING and self.up(pod.node)]

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self._kubelets()
        self._evict()
        if self.training_operator and self.job is not None and not self.succeeded:
            self._replace()
        self._schedule()
        self._train(seconds)

    def node_dies(self, name: str) -> None:
        self.nodes[name].down_since = self.now
        self.disturbances += 1

    def node_returns(self, name: str) -> None:
        """The node is reachable again; its kubelet finds that the containers are gone."""
        self.nodes[name].down_since = None
        for pod in self.pods:
            if pod.node == name and pod.phase is PodPhase.RUNNING:
                self.fail(pod, 137, "container is gone")

    def fail(self, pod: Pod, code: int, cause: str, evidence: str | None = None) -> None:
        pod.phase, pod.ended_at = PodPhase.FAILED, self.now
        pod.end = PodEnd(f"{pod.name}: {cause}", code, node=pod.node, evidence=evidence)

    def delete(self, pod: Pod, disruption: str | None = "Deleted") -> None:
        """Delete with a grace period: a pod without a node at once, any other when its kubelet ended it."""
        if pod not in self.pods or pod.deleted_at is not None:
            return
        pod.deleted_at = self.now
        if pod.end is None:
            pod.end = PodEnd(f"{pod.name}: pod was deleted", None, node=pod.node, disruption=disruption)
        if pod.node is None:
            self.pods.remove(pod)

    def delete_now(self, pod: Pod) -> None:
        if pod in self.pods:
            self.pods.remove(pod)

    def make_job(self, size: int, avoids: frozenset[str]) -> None:
        self.uids += 1
        self.job, self.succeeded = Job(self.uids, size, avoids), False

    def delete_job(self) -> None:
        self.job = None
        for pod in list(self.pods):
            self.delete(pod)

    def _kubelets(self) -> None:
        for pod in list(self.pods):
            if not self.up(pod.node):
                continue
            if pod.deleted_at is not None:
                done = self.now - pod.deleted_at >= SHUTDOWN and not pod.unkillable
                if done or pod.phase is not PodPhase.RUNNING:
                    self._end(pod)
            elif pod.phase is PodPhase.PENDING and self.now - pod.bound_at >= START:
                pod.phase, pod.started = PodPhase.RUNNING, self.now
                self.rendezvous_since = self.now

    def _end(self, pod: Pod) -> None:
        """Remove the pod; if it trained, it saves a checkpoint on SIGTERM."""
        if self.training and not self.hanging and tuple(each.uid for each in self.alive()) == self.gang:
            self.checkpoint = max(self.checkpoint, self.iteration)
        self.pods.remove(pod)

    def _evict(self) -> None:
        for pod in self.pods:
            since = self.nodes[pod.node].unreachable_since(self.now) if pod.node else None
            if since is not None and self.now - since >= EVICTION_DELAY:
                self.delete(pod, "DeletionByTaintManager")

    def _replace(self) -> None:
        assert self.job is not None
        for pod in list(self.pods):
            if pod.phase is PodPhase.FAILED and pod.deleted_at is None:
                self.delete_now(pod)
        present = {pod.rank for pod in self.pods}
        for rank in range(self.job.size):
            if rank not in present:
                self.uids += 1
                self.pods.append(Pod(self.uids, rank, self.job.avoids, self.job.uid, self.now))

    def _schedule(self) -> None:
        for pod in self.pods:
            if pod.node is None and pod.deleted_at is None:
                free = [name for name in self.free() if name not in pod.avoids]
                if free:
                    pod.node, pod.bound_at = free[0], self.now

    def _complete(self) -> bool:
        return self.job is not None and len(self.alive()) == self.job.size == len(self.pods)

    def _train(self, seconds: float) -> None:
        if self.job is None or self.succeeded:
            self.training = False
            return
        gang = tuple(pod.uid for pod in self.alive())
        if self.training and (gang != self.gang or not self._complete()):
            self.interrupt("pod")
        if not self.training:
            self._rendezvous(gang)
        elif not self.hanging and not self.evaluating:
            self._step(seconds)

    def interrupt(self, kind: str, rank: int | None = None) -> None:
        """Stop the ranks; a rendezvous follows."""
        if self.training:
            self.broken = {
                "kind": kind,
                "nodeRank": rank,
                "rank": None if rank is None else rank * PER_NODE,
                "cause": f"{kind} failed",
                "detectedAt": self.now,
                "lastStepAt": self.last_step,
                "iteration": self.iteration,
            }
        self.training = self.hanging = False
        self.rendezvous_since = self.now

    def _rendezvous(self, gang: tuple[int, ...]) -> None:
        if self.now - self.rendezvous_since > RENDEZVOUS and not self._complete() and self.alive():
            self.disturbances += 1
            self.rendezvous_since = self.now
            for pod in self.alive():
                if pod.deleted_at is None:
                    self.fail(pod, ExitCode.PEER_LOST, "lost its peers")
            return
        if not self._complete() or any(pod.deleted_at is not None for pod in self.pods):
            return
        if self.poisoned:
            self.disturbances += 1
            self.fail(self.alive()[0], ExitCode.WORKER_DIED, "rank 0 failed at the start")
            return
        self.gang, self.training, self.generation = gang, True, self.generation + 1
        if self.broken is not None:
            times = {"metAt": self.now, "firstStepAt": None, "caughtUpAt": None}
            start = {"generation": self.generation, "resumedFrom": self.checkpoint}
            self.incidents = [*self.incidents, self.broken | start | times][-8:]
            self.broken = None
        self.iteration = self.resumed_from = self.checkpoint

    def _step(self, seconds: float) -> None:
        self.iteration = min(TOTAL, self.iteration + round(seconds))
        self.checkpoint = max(self.checkpoint, self.iteration // SAVE_INTERVAL * SAVE_INTERVAL)
        self.last_step = self.now
        if self.incidents and self.incidents[-1]["generation"] == self.generation:
            newest = dict(self.incidents[-1])
            newest["firstStepAt"] = newest["firstStepAt"] or self.now
            if self.iteration > newest["iteration"]:
                newest["caughtUpAt"] = newest["caughtUpAt"] or self.now
            self.incidents[-1] = newest
        if self.iteration >= TOTAL:
            self.succeeded = True
