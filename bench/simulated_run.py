"""Simulates a run of many nodes from fault to fault; `recovery_policy.decide` chooses each action.

The trainer restarts dead ranks in place and the training-operator replaces pods, as on a cluster. The
operator is not modelled: its own code decides and keeps its incidents and restart budget.
"""

import heapq
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from megatron_contract.hardware import Evidence
from megatron_contract.incident import ReportedIncident
from megatron_operator.api.recipe import RecoverySpec
from megatron_operator.api.recovery_status import RecoveryStatus
from megatron_operator.api.times import seconds as moment
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.incidents import (
    PodReplacement,
    checkpoint_saved,
    gang_restarted,
    node_lost,
    pods_replaced,
    recovered,
)
from megatron_operator.lifecycle.node_evidence import forget_evidence, is_conclusive
from megatron_operator.lifecycle.observation import (
    Heartbeat,
    History,
    Limits,
    Observation,
    PodPhase,
    PodView,
)
from megatron_operator.lifecycle.pod_termination import PodEnd
from megatron_operator.lifecycle.recovery_policy import (
    Avoid,
    ChangeDomain,
    Fail,
    ForceDelete,
    Move,
    ReleaseNodes,
    Resize,
    RestartGang,
    Wait,
    decide,
)
from megatron_operator.lifecycle.reported_incidents import PodPlacement, add_reported_incidents

from bench.interruptions import Effect, Fault
from bench.wall_time import Clock, Phases, Scale

EPOCH: Final = 1_700_000_000.0
NODE_MONITOR_GRACE: Final = 40.0
"""Seconds until Kubernetes marks a silent node unreachable (default of kube-controller-manager)."""


class SimulatedRun:
    """A run of this operator; `play` returns its clock."""

    def __init__(self, scale: Scale, phases: Phases, spec: RecoverySpec, end: float) -> None:
        self.clock = Clock(scale, end)
        self.recovery = RecoveryStatus()
        self.decisions: dict[str, int] = {}
        self.failed: str | None = None
        self._scale, self._phases, self._limits = scale, phases, Limits.of(spec)
        self._pods = [
            PodView(rank, PodPhase.RUNNING, EPOCH, name=f"worker-{rank}", node=f"node-{rank}")
            for rank in range(scale.pods)
        ]
        self._spares = [f"node-{scale.pods + index}" for index in range(scale.spares)]
        self._repairs: list[tuple[float, str]] = []
        self._bad: set[str] = set()
        self._faults: list[Fault] = []
        self._generation = 1
        self._reported: list[dict[str, Any]] = []
        self._last_step = 0.0
        # The current incident: why ranks must rendezvous again, and how much of a start is needed.
        self._reason: dict[str, Any] | None = None
        self._detect = 0.0
        self._moved: set[int] = set()

    def play(self, faults: Iterable[Fault]) -> Clock:
        """Simulate from the first start to the end, or until the run has failed."""
        self._faults = sorted(faults, key=lambda fault: fault.time)
        clock = self.clock
        while clock.now < clock.end and self.failed is None:
            clock.train(self._next())
            if self._faults and clock.now >= self._faults[0].time:
                self._give_back_budget()
                self._last_step = clock.now
                self._strike(self._faults.pop(0))
                clock.fall_back()
                self._heal()
        clock.save()
        return clock

    def _next(self) -> float:
        return min(self._faults[0].time, self.clock.end) if self._faults else self.clock.end

    def _give_back_budget(self) -> None:
        self.recovery = checkpoint_saved(self.recovery, self.clock.checkpoints)

    def _spend(self, part: str, seconds: float) -> bool:
        """Advance the clock; false if another fault, which is then applied, or the end interrupts it."""
        if self.clock.spend(part, seconds, self._next()):
            return True
        if self._faults and self.clock.now >= self._faults[0].time:
            self._strike(self._faults.pop(0))
        return False

    def _strike(self, fault: Fault) -> None:
        pod = self._pods[fault.pod]
        self._detect = self._phases.rank_detect
        match fault.cause.effect:
            case Effect.RANK:
                self._report("rank", fault)
            case Effect.ACCELERATOR:
                if pod.node is not None:
                    self._bad.add(pod.node)
                self._report("rank", fault)
            case Effect.HANG:
                self._detect = self._scale.hang_found
                self._report("hang", fault)
            case Effect.NODE:
                noticed = EPOCH + self.clock.now + NODE_MONITOR_GRACE
                self._pods[fault.pod] = replace(pod, unreachable_since=noticed)
                self._report("pod", fault)
            case Effect.DRAIN:
                self._drain(fault)

    def _drain(self, fault: Fault) -> None:
        """The gang saves a checkpoint within the grace period; one pod moves."""
        if self._reason is None:
            self.clock.spend("checkpoint", self._scale.final_save, self.clock.end)
            self.clock.save()
        pod = self._pods[fault.pod]
        end = PodEnd(f"{pod.name}: drained", 143, node=pod.node, disruption="EvictionByEvictionAPI")
        self._replaced(pod, end)
        self._leave_node(fault.pod)
        self._report("stop", fault)

    def _report(self, kind: str, fault: Fault) -> None:
        self._reason = {
            "kind": kind,
            "nodeRank": fault.pod,
            "cause": fault.cause.component,
            "iteration": self.clock.checkpoints,
            "resumedFrom": self.clock.checkpoints,
            "lastStepAt": EPOCH + self._last_step,
        }

    def _replaced(self, pod: PodView, end: PodEnd) -> None:
        self.recovery = pods_replaced(
            self.recovery,
            [PodReplacement(pod.name, end)],
            EPOCH + self.clock.now,
            checkpoint=self.clock.checkpoints,
            iteration=self.clock.checkpoints,
        )

    def _leave_node(self, rank: int) -> None:
        """Remove a pod; its node is repaired, and the replacement uses a spare node."""
        node = self._pods[rank].node
        if node is not None:
            heapq.heappush(self._repairs, (self.clock.now + self._scale.repair, node))
        self._pods[rank] = PodView(rank, PodPhase.PENDING, name=f"worker-{rank}")
        self._moved.add(rank)

    def _heal(self) -> None:
        """Recover until the run trains again, fails, or the time is over."""
        while self.clock.now < self.clock.end:
            if not self._spend("detect", self._detect):
                continue
            self._detect = 0.0
            if self._recover():
                return

    def _recover(self) -> bool:
        """Execute decisions until a start is possible, then start; return whether recovery is complete."""
        while True:
            self._schedule()
            decision = decide(self._observe())
            name = type(decision).__name__
            self.decisions[name] = self.decisions.get(name, 0) + 1
            match decision:
                case Fail(cause):
                    self.failed = cause
                    return True
                case Wait(_, pause):
                    if self._ready():
                        return self._start()
                    if not self._spend(*self._idle(pause)):
                        return False
                case Move() | ChangeDomain():
                    raise AssertionError("no node announces its end here, and none has a topology domain")
                case _:
                    self._do(decision)

    def _do(self, decision: Avoid | ForceDelete | ReleaseNodes | RestartGang | Resize) -> None:
        now, ranks = EPOCH + self.clock.now, {pod.name: pod.node_rank for pod in self._pods}
        match decision:
            case ForceDelete(names, cause):
                for name in names:
                    pod = self._pods[ranks[name]]
                    reported = PodReplacement(name, PodEnd(cause, node=pod.node))
                    self.recovery = node_lost(
                        self.recovery, [reported], cause, now, iteration=self.clock.checkpoints
                    )
                    self._replaced(pod, PodEnd(cause, node=pod.node))
                    self._leave_node(pod.node_rank)
            case Avoid(nodes, names, _):
                avoided = sorted({*self.recovery.nodes_avoided, *nodes})
                self.recovery = self.recovery.model_copy(update={"nodes_avoided": avoided})
                for name in names:
                    self._leave_node(ranks[name])
                self._reason = (self._reason or {}) | {"kind": "pod", "cause": "moved to another node"}
            case ReleaseNodes(nodes, _):
                self._forget(nodes)
            case RestartGang(cause, hang):
                self.recovery = gang_restarted(
                    self.recovery, cause, now, checkpoint=self.clock.checkpoints, iteration=None, hang=hang
                )
                self._moved.update(range(len(self._pods)))
            case Resize():
                raise AssertionError("this run is not elastic")

    def _forget(self, nodes: Iterable[str]) -> None:
        gone = set(nodes)
        avoided = [node for node in self.recovery.nodes_avoided if node not in gone]
        self.recovery = self.recovery.model_copy(update={"nodes_avoided": avoided})
        self.recovery = forget_evidence(self.recovery, *gone)

    def _schedule(self) -> None:
        """Return repaired nodes to the spares, and bind pods without a node."""
        while self._repairs and self._repairs[0][0] <= self.clock.now:
            _, node = heapq.heappop(self._repairs)
            self._bad.discard(node)
            self._forget([node])
            self._spares.append(node)
        for rank in sorted(self._moved):
            if self._pods[rank].node is None and self._spares:
                self._pods[rank] = replace(self._pods[rank], node=self._spares.pop(0))
        placed = all(self._pods[rank].node is not None for rank in self._moved)
        since = None if placed else self.recovery.waiting_since or timestamp(EPOCH + self.clock.now)
        self.recovery = self.recovery.model_copy(update={"waiting_since": since})

    def _ready(self) -> bool:
        return all(pod.node is not None and not pod.unreachable for pod in self._pods)

    def _idle(self, pause: float | None) -> tuple[str, float]:
        if any(pod.unreachable for pod in self._pods):
            assert pause is not None, "an unreachable node is waited for as long as it may come back"
            return "detect", pause
        returns = self._repairs[0][0] - self.clock.now if self._repairs else float("inf")
        return "schedule", min(returns, pause or float("inf"))

    def _observe(self) -> Observation:
        now, recovery = EPOCH + self.clock.now, self.recovery
        return Observation(
            now=now,
            size=len(self._pods),
            pods=tuple(self._pods),
            heartbeat=Heartbeat("loading", self.clock.checkpoints, self._scale.step, now, now),
            history=History(
                "simulated",
                recovery.restarts_since_checkpoint,
                moment(recovery.last_restart_time),
                recovery.last_cause,
                recovery.first_cause,
                None,
                recovery.node_failures,
                {node: each.evidence for node, each in recovery.node_evidence.items() if is_conclusive(each)},
                frozenset(recovery.nodes_avoided),
            ),
            limits=self._limits,
            waiting_since=moment(recovery.waiting_since),
        )

    def _start(self) -> bool:
        """Start pods, rendezvous and load; return whether the run trains or the time is over."""
        began = self.clock.now
        seconds = self._phases.rank_start
        if self._moved:
            if not self._spend("schedule", self._phases.pod_schedule):
                return False
            seconds = self._scale.image_start + self._phases.pod_start
        bound = self.clock.now
        if not self._spend("start", seconds):
            return False
        self._meet(began, bound)
        # Ranks die on a bad node as soon as they initialize their accelerators.
        sick = next((pod for pod in self._pods if pod.node in self._bad), None)
        if sick is not None:
            self._die_again(sick)
            return False
        if not self._spend("load", self._scale.groups + self._scale.load):
            return False
        self._reason = None
        self.recovery = recovered(self.recovery, EPOCH + self.clock.now, resumed_from=self.clock.checkpoints)
        return True

    def _meet(self, began: float, bound: float) -> None:
        """All pods are present: node 0 reports the reason of the rendezvous to the operator."""
        started = EPOCH + self.clock.now
        for rank in self._moved:
            self._pods[rank] = replace(self._pods[rank], phase=PodPhase.RUNNING, started=started)
        self._moved.clear()
        self._generation += 1
        if self._reason is not None:
            times = {"detectedAt": EPOCH + began, "metAt": started}
            self._reported = [*self._reported, self._reason | times | {"generation": self._generation}][-8:]
        places = {pod.node_rank: PodPlacement(pod.name, pod.node) for pod in self._pods}
        self.recovery = add_reported_incidents(
            self.recovery,
            [ReportedIncident.from_json(each) for each in self._reported],
            places,
            bound_at=EPOCH + bound,
            checkpoint=self.clock.checkpoints,
        )

    def _die_again(self, sick: PodView) -> None:
        """The pod is given up at once: its ranks report evidence that the hardware failed."""
        self._detect = self._phases.rank_detect
        assert self._reason is not None, "a bad node is what the run recovers from"
        self._reason = self._reason | {
            "kind": "rank",
            "nodeRank": sick.node_rank,
            "cause": "no accelerator",
            "lastStepAt": None,
        }
        end = PodEnd(f"{sick.name}: accelerator lost", 138, node=sick.node, evidence=Evidence.DEVICE_LOST)
        self._replaced(sick, end)
        # Its replacement is scheduled to the same place unless that is avoided.
        self._pods[sick.node_rank] = replace(sick, phase=PodPhase.PENDING, started=None)
        self._moved.add(sick.node_rank)
