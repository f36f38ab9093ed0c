"""Random walks over a simulated cluster: whatever breaks, in whatever order, the decisions stay sound.

`make test` walks the same 100 ways each time; `RECOVERY_WALKS=5000 pytest tests/unit/recovery/test_walk.py`
as many others as it says.
"""

import os
import random
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from megatron_contract.exit_codes import ExitCode
from megatron_operator.lifecycle import (
    Avoid,
    Decision,
    Elastic,
    Fail,
    ForceDelete,
    Limits,
    Observation,
    PodPhase,
    ReleaseNodes,
    Resize,
    RestartGang,
    Wait,
)
from megatron_operator.lifecycle.recovery_policy import (
    AVOIDED_PATIENCE,
    RESIZE_PAUSE,
    UNREACHABLE_PATIENCE,
    decide,
)

from tests.unit.lifecycle.simulated_cluster import PER_NODE, RENDEZVOUS, Cluster, Node, Pod
from tests.unit.lifecycle.simulated_operator import Operator, plannable, waits_for_capacity

TICK = 10.0
NODES = 5
PATIENCE = 8 * 3600.0
"""In that time of calm every run has ended or waits for capacity."""
RANKS = st.integers(0, 3)
NAMES = st.integers(0, NODES - 1).map("node-{}".format)


class Walk(RuleBasedStateMachine):
    """Faults at random; time, in which cluster and operator do their work, in between."""

    @initialize(
        size=st.sampled_from([1, 2, 4]),
        budget=st.sampled_from([0, 1, 4, 10, 30]),
        avoid_after=st.sampled_from([0, 1, 2]),
        elastic=st.sampled_from([None, Elastic(PER_NODE, 60.0, 60.0), Elastic(2 * PER_NODE, 600.0, 300.0)]),
        nodes=st.integers(1, NODES),
    )
    def begin(self, size: int, budget: int, avoid_after: int, elastic: Elastic | None, nodes: int) -> None:
        self.cluster = Cluster({f"node-{index}": Node(f"node-{index}") for index in range(NODES)})
        for index in range(nodes, NODES):
            self.cluster.nodes[f"node-{index}"].taken = True
        if elastic is not None and elastic.min_count > size * PER_NODE:
            elastic = None
        limits = Limits(budget, RENDEZVOUS, avoid_after=avoid_after, elastic=elastic)
        self.limits, self.asked = limits, size * PER_NODE
        self.operator = self.new_operator()
        self.hangs = self.network_losses = 0
        self.saved = 0

    def new_operator(self) -> Any:
        return Operator(self.cluster, self.asked, self.limits, judge=self.judge)

    def plannable(self, count: int) -> bool:
        return plannable(count)

    def pod(self, rank: int) -> Pod | None:
        """A pod that runs and is not being deleted."""
        alive = [pod for pod in self.cluster.alive() if pod.deleted_at is None]
        return alive[rank % len(alive)] if alive else None

    @rule(ticks=st.integers(1, 15))
    def time_passes(self, ticks: int) -> None:
        for _ in range(ticks):
            self.cluster.pass_time(TICK)
            self.operator.look()

    @rule(ticks=st.integers(30, 80))
    def much_time_passes(self, ticks: int) -> None:
        self.time_passes(ticks)

    @rule()
    def all_nodes_return_and_are_free(self) -> None:
        for name, node in self.cluster.nodes.items():
            node.taken = False
            self.a_node_returns(name)

    @rule(rank=RANKS)
    def a_rank_dies(self, rank: int) -> None:
        if self.cluster.training:
            self.cluster.break_up("rank", rank % len(self.cluster.gang))

    @rule(rank=RANKS, code=st.sampled_from([ExitCode.WORKER_DIED, 137, ExitCode.INTERNAL + 100]))
    def a_pod_dies(self, rank: int, code: int) -> None:
        if (pod := self.pod(rank)) is not None:
            self.cluster.disturbances += 1
            self.cluster.fail(pod, code, "died")

    @rule(rank=RANKS)
    def a_pod_is_drained(self, rank: int) -> None:
        if (pod := self.pod(rank)) is not None:
            self.cluster.disturbances += 1
            self.cluster.delete(pod, "EvictionByEvictionAPI")

    @rule(rank=RANKS)
    def a_pod_is_deleted_by_force(self, rank: int) -> None:
        if (pod := self.pod(rank)) is not None:
            self.cluster.disturbances += 1
            self.cluster.delete_now(pod)

    @rule(name=NAMES)
    def a_node_dies(self, name: str) -> None:
        if self.cluster.up(name):
            self.cluster.node_dies(name)

    @rule(name=NAMES)
    def a_node_returns(self, name: str) -> None:
        if not self.cluster.up(name):
            self.cluster.node_returns(name)

    @rule(name=NAMES, taken=st.booleans())
    def others_take_or_leave_a_node(self, name: str, taken: bool) -> None:
        if all(pod.node != name for pod in self.cluster.pods):
            self.cluster.nodes[name].taken = taken

    @precondition(lambda self: self.cluster.training)
    @rule(found=st.booleans())
    def ranks_hang(self, found: bool) -> None:
        """The trainer finds it, or its launchers hang too and the operator must."""
        self.hangs += 1
        self.cluster.disturbances += 1
        if found:
            self.cluster.break_up("hang", 0)
        else:
            self.cluster.hanging = True

    @rule(poisoned=st.booleans())
    def starts_begin_or_cease_to_fail(self, poisoned: bool) -> None:
        self.cluster.poisoned = poisoned

    @rule(calls=st.integers(0, 5))
    def the_operator_dies_in_its_next_calls(self, calls: int) -> None:
        self.operator.calls_to_live = calls

    @rule(there=st.booleans())
    def the_training_operator_goes_or_comes(self, there: bool) -> None:
        self.cluster.training_operator = there

    @rule(heard=st.booleans())
    def the_network_up_to_the_operator_goes_or_comes(self, heard: bool) -> None:
        self.network_losses += self.operator.heard and not heard
        self.operator.heard = heard

    @rule(seed=st.integers(0, 2**32 - 1))
    def a_bad_hour(self, seed: int) -> None:
        """Twelve faults in a row, some at once, some minutes apart."""
        chance = random.Random(seed)
        for _ in range(12):
            rank, name = chance.randrange(4), f"node-{chance.randrange(NODES)}"
            match chance.randrange(10):
                case 0:
                    self.a_rank_dies(rank)
                case 1 | 2:
                    self.a_pod_dies(rank, chance.choice([ExitCode.WORKER_DIED, 137]))
                case 3:
                    self.a_pod_is_drained(rank)
                case 4:
                    self.a_pod_is_deleted_by_force(rank)
                case 5:
                    self.a_node_dies(name)
                case 6 | 7:
                    self.all_nodes_return_and_are_free()
                case 8 if self.cluster.training:
                    self.ranks_hang(chance.random() < 0.5)
                case _:
                    self.the_operator_dies_in_its_next_calls(chance.randrange(6))
            self.time_passes(chance.choice([0, 1, 2, 5, 15, 40]))

    def judge(self, seen: Observation, decision: Decision) -> None:
        """Every decision, at the moment at which it is taken."""
        assert decide(seen) == decision, "another look at the same gives the same"
        if isinstance(decision, Wait):
            assert decision.seconds is None or decision.seconds > 0
            return
        pods = {pod.name: pod for pod in seen.pods}
        if isinstance(decision, ForceDelete):
            for pod in (pods[name] for name in decision.pods):
                assert pod.unreachable_since is not None, "a kubelet ends this pod"
                assert pod.overdue or seen.now - pod.unreachable_since >= UNREACHABLE_PATIENCE
            return
        assert not any(pod.deleting for pod in seen.pods), "acts while pods are being deleted"
        limits, spent = seen.limits, seen.history.restarts_since_checkpoint
        match decision:
            case RestartGang(cause):
                before = self.operator.status.recovery.restarts_by_kind.gang
                assert before < self.hangs + self.network_losses, "restarts what does not hang"
                assert len(seen.pods) == seen.size
                assert all(pod.phase is PodPhase.RUNNING for pod in seen.pods)
                assert spent < limits.max_restarts, "goes beyond the budget"
                assert cause
            case Fail(cause):
                assert spent >= limits.max_restarts, "gives up too early"
                assert not seen.history.first_cause or seen.history.first_cause in cause
            case Resize(count, _):
                assert limits.elastic is not None
                assert limits.elastic.min_count <= count <= self.asked
                assert count != seen.size * PER_NODE
                assert self.plannable(count)
                before = seen.history.last_resize or 0.0
                assert seen.now - before >= RESIZE_PAUSE, "resizes too often"
            case Avoid(nodes, names, _):
                assert limits.avoid_after
                assert all(seen.history.node_failures[node] >= limits.avoid_after for node in nodes)
                assert all(pods[name].node in nodes for name in names)
                trains = self.cluster.training and self.cluster.iteration > self.cluster.resumed_from
                assert not (names and trains and self.operator.heard), "moves what trains"
            case ReleaseNodes():
                assert seen.waiting_since is not None
                assert seen.now - seen.waiting_since >= AVOIDED_PATIENCE

    @invariant()
    def one_failure_costs_at_most_one_restart(self) -> None:
        recovery = self.operator.status.recovery
        allowed = self.cluster.disturbances + self.network_losses
        assert recovery.restarts <= allowed, "restarts more often than something failed"
        assert recovery.restarts_since_checkpoint <= allowed

    @invariant()
    def no_checkpoint_is_lost(self) -> None:
        assert self.cluster.checkpoint >= self.saved
        self.saved = self.cluster.checkpoint

    @invariant()
    def the_history_adds_up(self) -> None:
        recovery = self.operator.status.recovery
        numbers = [each.number for each in recovery.history]
        assert numbers == list(range(numbers[-1] - len(numbers) + 1, numbers[-1] + 1)) if numbers else True
        kinds = recovery.restarts_by_kind.model_dump()
        assert min(kinds.values()) >= 0
        assert sum(kinds.values()) == (numbers[-1] if numbers else 0)
        if numbers and numbers[0] == 1:
            lost = sum(each.lost_iterations or 0 for each in recovery.history)
            assert recovery.lost_iterations == lost

    def teardown(self) -> None:
        """Nothing more breaks, what is dead stays dead: the run must come to an end or wait for capacity."""
        if not hasattr(self, "cluster"):
            return
        self.cluster.training_operator = self.operator.heard = True
        until = self.cluster.now + PATIENCE
        while self.operator.status.over is None and self.cluster.now < until:
            self.time_passes(6)
            self.one_failure_costs_at_most_one_restart()
        self.the_history_adds_up()
        if self.operator.status.over == "Failed":
            self.time_passes(60)
            assert self.cluster.job is None, "the accelerators of a failed run are given back"
            assert not self.cluster.pods, "no pod is left over"
        elif self.operator.status.over is None:
            recovery = self.operator.status.recovery
            waits = waits_for_capacity(self.cluster, recovery, self.limits, self.plannable)
            assert waits, "neither ended nor waiting for capacity"
        else:
            assert self.operator.status.over == "Succeeded"


TestWalk = Walk.TestCase
TestWalk.settings = settings(
    max_examples=int(os.environ.get("RECOVERY_WALKS", "100")),
    # The same ways each time, so that a change fails by its own fault; new ways where more are asked for.
    derandomize="RECOVERY_WALKS" not in os.environ,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
