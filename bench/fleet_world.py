"""What the bench does to the cluster: it plays trainers, injects the planned faults, and repairs nodes."""

import heapq
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final

from megatron_contract.exit_codes import ExitCode
from megatron_contract.hardware import Evidence
from megatron_contract.termination import TerminationMessage
from urllib3.exceptions import HTTPError

from bench.fleet_plan import Injection, PlannedFault, RunPlan, faults
from bench.fleet_pods import SeenPod
from bench.fleet_trainer import Interruption, Member, Trainer
from bench.scale_cluster import NAMESPACE
from bench.scale_processes import FakePods
from testkit.api_server import Api
from testkit.errors import ApiError
from testkit.fake_nodes import NODE_LEASES, fake_node, lose_node
from testkit.fake_trainers import terminate_container

log = logging.getLogger(__name__)

CLIENTS: Final = 8
"""Threads that change the cluster."""
DYING: Final = 1.0
"""Seconds until the ranks on a bad node die."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What is played, and how fast."""

    factor: float
    """Seconds of the fleet in one of the clock."""
    repair: float
    """Seconds by the clock until a node is repaired."""
    mix: str
    rate: float
    seed: int


@dataclass(slots=True)
class _Run:
    trainer: Trainer
    faults: Iterator[PlannedFault]
    next: PlannedFault
    dying: dict[str, float] = field(default_factory=dict)
    """Pods on bad nodes by uid -> when they were seen first."""


class FleetPods(FakePods):
    """Answers /progress for the trainers of the world."""

    def __init__(self) -> None:
        self.answers: dict[str, Callable[[], dict[str, Any]]] = {}
        """Pod -> its answer, of pods that run."""
        super().__init__()

    def report(self, pod: str) -> dict[str, Any] | None:
        """The report of a pod; None of one that does not answer."""
        answer = self.answers.get(pod)
        return None if answer is None else answer()


class World:
    """All runs and nodes. `advance` is to be called a few times a second, from one thread."""

    def __init__(
        self, api: Api, answers: dict[str, Callable[[], dict[str, Any]]], nodes: Sequence[str], trace: Trace
    ) -> None:
        self._api = api
        self._answers = answers
        self._trace = trace
        self._nodes = frozenset(nodes)
        self._runs: dict[str, _Run] = {}
        self._pool = ThreadPoolExecutor(CLIENTS)
        self._broken: dict[str, Injection] = {}
        """Nodes that are out of order, and why."""
        self._repairs: list[tuple[float, str]] = []
        self._ending: set[str] = set()
        """uids of pods whose containers end, before the API server has it."""
        self.injecting = True
        """Whether faults happen."""
        self.errors: list[str] = []
        """Of the bench itself."""

    @property
    def trainers(self) -> list[Trainer]:
        """The trainers of all runs that have arrived."""
        return [run.trainer for run in self._runs.values()]

    def add(self, plan: RunPlan) -> Trainer:
        """A run has arrived."""
        upcoming = faults(plan.name, self._trace.mix, self._trace.rate, self._trace.seed)
        run = _Run(Trainer(plan, self._trace.factor), upcoming, next(upcoming))
        self._runs[plan.name] = run
        return run.trainer

    def advance(self, now: float, elapsed: float, pods: Sequence[SeenPod], released: Collection[str]) -> None:
        """Let `elapsed` seconds pass up to `now`; `released` is as in Trainer.advance."""
        while self._repairs and self._repairs[0][0] <= now:
            self._submit(self._repair, heapq.heappop(self._repairs)[1])
        of_run: dict[str, list[SeenPod]] = defaultdict(list)
        for pod in pods:
            if pod.active:
                of_run[pod.run].append(pod)
        taken = {pod.member.node for pod in pods if pod.active}
        free = len(self._nodes - self._broken.keys() - taken)
        answers: dict[str, Callable[[], dict[str, Any]]] = {}
        for name, run in self._runs.items():
            found = of_run.get(name, [])
            self._play(run, now, elapsed, found, released)
            self._count(run.trainer, elapsed, found, free)
            for pod in found:
                if self._alive(pod.member).running:
                    answers[pod.member.name] = _answer(run.trainer, pod.member.rank)
        self._answers.clear()
        self._answers.update(answers)

    def stop(self) -> None:
        """Wait for what is being changed."""
        self._pool.shutdown()

    def _alive(self, member: Member) -> Member:
        lost = self._broken.get(member.node or "") is Injection.NODE_DIES
        return replace(member, running=member.running and not lost and member.uid not in self._ending)

    def _play(
        self, run: _Run, now: float, elapsed: float, found: list[SeenPod], released: Collection[str]
    ) -> None:
        trainer, finished = run.trainer, run.trainer.phase == "finished"
        members = [self._alive(pod.member) for pod in found]
        size = max((pod.size for pod in found), default=0)
        trainer.advance(now, elapsed, members, size, released)
        if trainer.phase == "finished" and not finished:
            self._submit(self._complete, trainer)
        sick = [each for each in members if self._broken.get(each.node or "") is Injection.DEVICE_FAILS]
        run.dying = {each.uid: run.dying.get(each.uid, now) for each in sick if each.running}
        for each in sick:
            if run.dying.get(each.uid, now) + DYING <= now:
                run.dying[each.uid] = float("inf")
                self._end(each, Evidence.DEVICE_LOST, f"GPU of {each.node} is lost")
        trains = trainer.phase == "training" and trainer.hang is None
        if self.injecting and trains and trainer.gpu_hours >= run.next.gpu_hours:
            self._inject(trainer, run.next, now)
            run.next = next(run.faults)

    def _count(self, trainer: Trainer, elapsed: float, found: list[SeenPod], free: int) -> None:
        """Add the time to what the run did meanwhile; training counts by its iterations."""
        if trainer.phase == "finished" or (trainer.phase == "training" and trainer.hang is None):
            return
        unbound = sum(pod.member.node is None for pod in found)
        if trainer.first_started is None:
            trainer.times.queued += elapsed
        elif unbound > free:
            trainer.times.waiting += elapsed
        elif trainer.hang is not Injection.RANKS_HANG:
            trainer.times.recovering += elapsed

    def _inject(self, trainer: Trainer, fault: PlannedFault, now: float) -> None:
        member = trainer.members[int(fault.place * len(trainer.members))]
        trainer.interruptions.append(Interruption(fault, now, trainer.members))
        cause = fault.cause
        match fault.injection:
            case Injection.RANK_DIES:
                trainer.interrupt(now, "rank", cause, member.rank)
            case Injection.RANKS_HANG | Injection.LAUNCHERS_HANG:
                trainer.hold(now, fault.injection)
            case Injection.POD_FAILS:
                trainer.interrupt(now, "rank", cause, member.rank)
                self._end(member, None, cause)
            case Injection.DEVICE_FAILS:
                trainer.interrupt(now, "rank", cause, member.rank)
                self._break(member, fault.injection, now)
                self._end(member, Evidence.DEVICE_MEMORY, cause)
            case Injection.NODE_DIES:
                trainer.interrupt(now, "pod", cause, member.rank)
                self._break(member, fault.injection, now)
                self._submit(self._lose, member)
            case Injection.POD_EVICTED:
                self._break(member, fault.injection, now)
                self._submit(self._evict, member)

    def _break(self, member: Member, why: Injection, now: float) -> None:
        assert member.node is not None, "a pod that runs is bound"
        self._broken[member.node] = why
        heapq.heappush(self._repairs, (now + self._trace.repair, member.node))

    def _submit(self, change: Callable[..., None], *of: Any) -> None:
        def run() -> None:
            try:
                change(*of)
            except (ApiError, HTTPError, AssertionError) as error:
                # A pod may be gone before it is changed: what it was to suffer has then happened to it.
                if not (isinstance(error, ApiError) and error.status in (404, 409)):
                    self.errors.append(f"{change.__name__}: {error}")
                    log.warning("%s: %s", change.__name__, error)

        self._pool.submit(run)

    def _end(self, member: Member, evidence: Evidence | None, cause: str) -> None:
        self._ending.add(member.uid)
        self._submit(self._fail, member, evidence, cause)

    def _fail(self, member: Member, evidence: Evidence | None, cause: str) -> None:
        code = ExitCode.WORKER_DIED
        message = TerminationMessage.of(code, cause, node_rank=member.rank, evidence=evidence)
        terminate_container(self._api, NAMESPACE, member.name, code, message.dumps(), time=_stamp())

    def _complete(self, trainer: Trainer) -> None:
        """All pods end, that of rank 0 last: its end is the job's."""
        total = trainer.total
        done = TerminationMessage.of(ExitCode.OK, "done", iteration=total, checkpoint_iteration=total)
        message = done.dumps()
        for member in reversed(trainer.members):
            terminate_container(
                self._api, NAMESPACE, member.name, ExitCode.OK, message, reason="Completed", time=_stamp()
            )

    def _lose(self, member: Member) -> None:
        assert member.node is not None, "a pod that runs is bound"
        lose_node(self._api, member.node)

    def _evict(self, member: Member) -> None:
        self._api.patch("Node", None, str(member.node), {"spec": {"unschedulable": True}})
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": member.name, "namespace": NAMESPACE},
        }
        self._api.request("POST", self._api.path("Pod", NAMESPACE, member.name) + "/eviction", eviction)

    def _repair(self, node: str) -> None:
        """The node comes back: a lost one finds its containers gone, the others were replaced."""
        why = self._broken[node]
        if why in (Injection.POD_EVICTED, Injection.DEVICE_FAILS):  # drained or cordoned
            self._api.patch("Node", None, node, {"spec": {"unschedulable": None}})
        elif why is Injection.NODE_DIES:
            for pod in self._api.list("Pod", NAMESPACE, fieldSelector=f"spec.nodeName={node}"):
                name = pod["metadata"]["name"]
                if "deletionTimestamp" in pod["metadata"]:
                    self._api.delete("Pod", NAMESPACE, name, gracePeriodSeconds=0)
                else:
                    terminate_container(self._api, NAMESPACE, name, 137, "container is gone", time=_stamp())
            self._api.delete("Node", None, node)
            self._api.delete("Lease", NODE_LEASES, node)
            self._api.create(fake_node(node, rack="repaired"))
        del self._broken[node]


def _answer(trainer: Trainer, rank: int) -> Callable[[], dict[str, Any]]:
    return lambda: trainer.report(rank)


def _stamp() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
