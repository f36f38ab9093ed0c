"""Random walks over a small simulated cluster: pods die, hang, come back; decisions stay sound."""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from megatron_operator.recovery import (
    Decision,
    Fail,
    Heartbeat,
    History,
    Limits,
    Observation,
    PodPhase,
    PodView,
    RestartGang,
    Wait,
    decide,
)

SAVE_EVERY = 5


class SimulatedGang(RuleBasedStateMachine):
    """A gang, the training-operator that replaces its pods, and the controller that obeys decisions."""

    @initialize(
        size=st.integers(1, 4),
        budget=st.integers(0, 3),
        hang=st.sampled_from(["auto", "off", "10s"]),
    )
    def begin(self, size: int, budget: int, hang: str) -> None:
        self.now = 1_000.0
        self.size = size
        self.limits = Limits.parse(budget, 60, hang)
        self.pods: dict[int, PodView] = {}
        self.heartbeat: Heartbeat | None = None
        self.history = History("run")
        self.iteration = self.checkpoint = self.known_checkpoint = 0
        self.over = False
        self.restarts_without_checkpoint = 0
        self.gang_restarts: list[float] = []

    def observe(self) -> Observation:
        return Observation(
            self.now, self.size, tuple(self.pods.values()), self.heartbeat, self.history, self.limits
        )

    def whole(self) -> bool:
        return len(self.pods) == self.size and all(
            pod.phase is PodPhase.RUNNING and not pod.deleting for pod in self.pods.values()
        )

    def count(self, cause: str) -> None:
        if self.checkpoint > self.known_checkpoint:
            self.restarts_without_checkpoint = 0
        self.restarts_without_checkpoint += 1
        self.known_checkpoint = self.checkpoint
        self.history = replace(
            self.history,
            restarts_since_checkpoint=self.restarts_without_checkpoint,
            last_restart=self.now,
            last_cause=cause,
        )

    @rule(seconds=st.floats(0.5, 400))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def pods_are_made(self) -> None:
        for rank in range(self.size):
            self.pods.setdefault(rank, PodView(rank, PodPhase.PENDING))

    @rule(rank=st.integers(0, 3))
    def a_pod_starts(self, rank: int) -> None:
        pod = self.pods.get(rank)
        if pod is not None and pod.phase is PodPhase.PENDING and not pod.deleting:
            self.pods[rank] = replace(pod, phase=PodPhase.RUNNING, started=self.now)

    @rule(rank=st.integers(0, 3))
    def a_pod_dies_and_is_deleted(self, rank: int) -> None:
        if rank in self.pods:
            self.pods[rank] = replace(self.pods[rank], phase=PodPhase.FAILED, deleting=True)

    @rule()
    def deleted_pods_go(self) -> None:
        gone = [rank for rank, pod in self.pods.items() if pod.deleting]
        for rank in gone:
            del self.pods[rank]
        if gone and not self.over:
            self.count("a pod was lost")

    @precondition(lambda self: self.whole())
    @rule(steps=st.integers(1, 12))
    def it_trains(self, steps: int) -> None:
        self.now += steps
        self.iteration += steps
        self.checkpoint = max(self.checkpoint, self.iteration // SAVE_EVERY * SAVE_EVERY)
        self.heartbeat = Heartbeat("training", self.iteration, 1.0, self.now, self.now)
        if self.checkpoint > self.known_checkpoint:
            self.restarts_without_checkpoint = 0
            self.history = replace(self.history, restarts_since_checkpoint=0)

    @precondition(lambda self: self.whole())
    @rule(phase=st.sampled_from(["rendezvous", "training", "saving"]))
    def it_hangs(self, phase: str) -> None:
        moved = self.heartbeat.moved if self.heartbeat else None
        self.heartbeat = Heartbeat(phase, self.iteration, 1.0, self.now, moved)

    @rule()
    def the_controller_looks(self) -> None:
        if self.over:
            return
        before = self.observe()
        decision = decide(before)
        self.check(before, decision)
        if isinstance(decision, RestartGang):
            self.count(decision.cause)
            self.gang_restarts.append(self.now)
            self.pods = {rank: replace(pod, deleting=True) for rank, pod in self.pods.items()}
            # Their going is this restart, not another.
            self.pods = {}
        elif isinstance(decision, Fail):
            self.over = True
            self.pods = {}

    def check(self, seen: Observation, decision: Decision) -> None:
        deleting = any(pod.deleting for pod in seen.pods)
        if isinstance(decision, RestartGang):
            assert not deleting, "acts while pods are being deleted"
            assert self.whole(), "starts a gang anew that is not all there"
            assert self.restarts_without_checkpoint < self.limits.max_restarts, "goes beyond the budget"
            assert decision.cause
        if isinstance(decision, Fail):
            assert not deleting
            assert self.restarts_without_checkpoint >= self.limits.max_restarts, "gives up too early"
        if isinstance(decision, Wait) and decision.seconds is not None:
            assert 0 < decision.seconds <= 375

    @invariant()
    def deciding_twice_is_deciding_once(self) -> None:
        if hasattr(self, "pods"):
            assert decide(self.observe()) == decide(self.observe())

    @invariant()
    def a_gang_that_moves_is_left_alone(self) -> None:
        if hasattr(self, "pods") and self.heartbeat is not None and self.heartbeat.moved == self.now:
            assert not isinstance(decide(self.observe()), RestartGang)


TestSimulatedGang = SimulatedGang.TestCase
TestSimulatedGang.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
