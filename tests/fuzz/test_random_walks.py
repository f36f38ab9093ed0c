"""Random walks over a simulated cluster: the whole reconciler stays sound, whatever fails in whatever order.

`make test` takes the same walks each time. `RECOVERY_WALKS=5000 pytest tests/fuzz/test_random_walks.py`
takes so many new ones.
"""

import os
import random
from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from megatron_contract.exit_codes import ExitCode
from megatron_contract.hardware import Evidence
from megatron_operator.api.recovery_status import RecoveryStatus
from megatron_operator.api.times import seconds
from megatron_operator.lifecycle.ledger_weeks import TICKS
from megatron_operator.lifecycle.observation import Elastic, Limits, Observation, PodPhase
from megatron_operator.lifecycle.recovery_policy import (
    AVOIDED_PATIENCE,
    RESIZE_INTERVAL,
    UNREACHABLE_PATIENCE,
    Avoid,
    Decision,
    Fail,
    ForceDelete,
    ReleaseNodes,
    Resize,
    RestartGang,
    Wait,
    decide,
)
from megatron_operator.lifecycle.status_reading import read_status
from megatron_operator.lifecycle.time_ledger import MAX_LOSSES, MAX_MARKS, account

from tests.unit.controller.api_in_memory import ApiInMemory
from tests.unit.controller.simulated_cluster import PER_NODE, RENDEZVOUS, Cluster, Node, Pod
from tests.unit.controller.whole_operator import WholeOperator, has_plan, recipe_spec

TICK = 10.0
NODES = 5
PATIENCE = 8 * 3600.0
"""Seconds without faults after which every run has ended or waits for capacity."""
RANKS = st.integers(0, 3)
NAMES = st.integers(0, NODES - 1).map("node-{}".format)


class Walk(RuleBasedStateMachine):
    """Random faults; between them time passes, in which cluster and operator act."""

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
        self.limits = Limits(budget, RENDEZVOUS, avoid_after=avoid_after, elastic=elastic)
        self.requested = size * PER_NODE
        api = ApiInMemory(self.cluster, recipe_spec(self.requested, self.limits))
        self.operator = WholeOperator(api, self.check)
        self.hangs = self.network_losses = 0
        self.saved = 0

    def has_plan(self, count: int) -> bool:
        return has_plan(self.requested, count)

    def pod(self, rank: int) -> Pod | None:
        """A pod that runs and is not being deleted."""
        alive = [pod for pod in self.cluster.alive() if pod.deleted_at is None]
        return alive[rank % len(alive)] if alive else None

    @rule(ticks=st.integers(1, 15))
    def time_passes(self, ticks: int) -> None:
        for _ in range(ticks):
            self.cluster.pass_time(TICK)
            self.operator.reconcile()

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
            self.cluster.interrupt("rank", rank % len(self.cluster.gang))

    @rule(rank=RANKS, code=st.sampled_from([ExitCode.WORKER_DIED, 137, ExitCode.INTERNAL + 100]))
    def a_pod_dies(self, rank: int, code: int) -> None:
        if (pod := self.pod(rank)) is not None:
            self.cluster.disturbances += 1
            self.cluster.fail(pod, code, "died")

    @rule(rank=RANKS)
    def a_device_fails(self, rank: int) -> None:
        if (pod := self.pod(rank)) is not None:
            self.cluster.disturbances += 1
            cause = f"rank {rank}: uncorrectable ECC error encountered"
            self.cluster.fail(pod, ExitCode.WORKER_DIED, cause, Evidence.DEVICE_MEMORY)

    @rule(rank=RANKS)
    def a_pod_is_drained(self, rank: int) -> None:
        if (pod := self.pod(rank)) is not None:
            self.cluster.disturbances += 1
            self.cluster.delete(pod, "EvictionByEvictionAPI")

    @rule(rank=RANKS)
    def a_pod_is_force_deleted(self, rank: int) -> None:
        if (pod := self.pod(rank)) is not None:
            self.cluster.disturbances += 1
            self.cluster.delete_now(pod)

    @rule(name=NAMES)
    def a_node_dies(self, name: str) -> None:
        if self.cluster.up(name):
            self.cluster.node_dies(name)

    @rule(rank=RANKS)
    def a_node_dies_while_its_pod_is_drained(self, rank: int) -> None:
        pod = self.pod(rank)
        if pod is not None and pod.node is not None:
            self.a_pod_is_drained(rank)
            self.cluster.node_dies(pod.node)

    @rule(name=NAMES)
    def a_node_returns(self, name: str) -> None:
        if not self.cluster.up(name):
            self.cluster.node_returns(name)

    @rule(name=NAMES, taken=st.booleans())
    def other_users_take_or_leave_a_node(self, name: str, taken: bool) -> None:
        if all(pod.node != name for pod in self.cluster.pods):
            self.cluster.nodes[name].taken = taken

    @precondition(lambda self: self.cluster.training)
    @rule(detected=st.booleans())
    def ranks_hang(self, detected: bool) -> None:
        """The trainer detects it, or its launchers hang as well and the operator has to."""
        self.hangs += 1
        self.cluster.disturbances += 1
        if detected:
            self.cluster.interrupt("hang", 0)
        else:
            self.cluster.hanging = True

    @rule(poisoned=st.booleans())
    def starts_begin_or_cease_to_fail(self, poisoned: bool) -> None:
        self.cluster.poisoned = poisoned

    @rule(writes=st.integers(0, 5))
    def the_operator_dies_at_one_of_its_next_writes(self, writes: int) -> None:
        self.operator.die_after(writes)

    @rule(present=st.booleans())
    def the_training_operator_stops_or_starts(self, present: bool) -> None:
        self.cluster.training_operator = present

    @rule(reachable=st.booleans())
    def the_network_to_the_operator_fails_or_works(self, reachable: bool) -> None:
        self.network_losses += self.operator.reachable and not reachable
        self.operator.reachable = reachable

    @rule(seed=st.integers(0, 2**32 - 1))
    def a_bad_hour(self, seed: int) -> None:
        """Twelve faults in a row, some at once, some minutes apart."""
        chance = random.Random(seed)
        for _ in range(12):
            rank, name = chance.randrange(4), f"node-{chance.randrange(NODES)}"
            match chance.randrange(11):
                case 0:
                    self.a_rank_dies(rank)
                case 1 | 2:
                    self.a_pod_dies(rank, chance.choice([ExitCode.WORKER_DIED, 137]))
                case 3:
                    self.a_pod_is_drained(rank)
                case 4:
                    self.a_pod_is_force_deleted(rank)
                case 5:
                    self.a_node_dies(name)
                case 6 | 7:
                    self.all_nodes_return_and_are_free()
                case 9:
                    self.a_device_fails(rank)
                case 8 if self.cluster.training:
                    self.ranks_hang(chance.random() < 0.5)
                case _:
                    self.the_operator_dies_at_one_of_its_next_writes(chance.randrange(6))
            self.time_passes(chance.choice([0, 1, 2, 5, 15, 40]))

    def check(self, seen: Observation, decision: Decision) -> None:
        """Check every decision when it is made."""
        assert decide(seen) == decision, "the same observation leads to the same decision"
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
                before = self.operator.recovery.restarts_by_kind.gang
                assert before < self.hangs + self.network_losses, "restarts what does not hang"
                assert len(seen.pods) == seen.size
                assert all(pod.phase is PodPhase.RUNNING for pod in seen.pods)
                assert spent < limits.max_restarts, "exceeds the budget"
                assert cause
            case Fail(cause):
                assert spent >= limits.max_restarts, "gives up too early"
                assert not seen.history.first_cause or seen.history.first_cause in cause
            case Resize(count, _):
                assert limits.elastic is not None
                assert limits.elastic.min_count <= count <= self.requested
                assert count != seen.size * PER_NODE
                assert self.has_plan(count)
                last = seen.history.last_resize or 0.0
                assert seen.now - last >= RESIZE_INTERVAL, "resizes too often"
            case Avoid(nodes, names, _):
                assert limits.avoid_after
                places = seen.avoidance and seen.avoidance.places
                if places is not None and set(nodes) & places.keys():
                    left = [n for at, n in places.items() if at not in seen.history.avoided | set(nodes)]
                    assert sum(left) >= seen.size, "avoids nodes that the run needs"
                for node in nodes:
                    often = seen.history.node_failures[node] >= limits.avoid_after
                    assert often or node in seen.history.proven
                assert all(pods[name].node in nodes for name in names)
                trains = self.cluster.training and self.cluster.iteration > self.cluster.resumed_from
                assert not (names and trains and self.operator.reachable), "moves pods that train"
            case ReleaseNodes():
                waited = seen.waiting_since is not None and seen.now - seen.waiting_since >= AVOIDED_PATIENCE
                places, avoided = seen.avoidance and seen.avoidance.places, seen.history.avoided
                room = None if places is None else sum(n for at, n in places.items() if at not in avoided)
                needed = room is not None and room < seen.size
                assert waited or needed or seen.history.cleared

    @invariant()
    def one_failure_costs_at_most_one_restart(self) -> None:
        recovery = self.operator.recovery
        allowed = self.cluster.disturbances + self.network_losses
        assert recovery.restarts <= allowed, "restarts more often than something failed"
        assert recovery.restarts_since_checkpoint <= allowed

    @invariant()
    def no_checkpoint_is_lost(self) -> None:
        assert self.cluster.checkpoint >= self.saved
        self.saved = self.cluster.checkpoint

    @invariant()
    def the_totals_match_the_history(self) -> None:
        recovery = self.operator.recovery
        numbers = [each.number for each in recovery.history]
        assert numbers == list(range(numbers[-1] - len(numbers) + 1, numbers[-1] + 1)) if numbers else True
        kinds = recovery.restarts_by_kind.model_dump(exclude_none=True)
        assert min(kinds.values()) >= 0
        assert sum(kinds.values()) == (numbers[-1] if numbers else 0)
        if numbers and numbers[0] == 1:
            lost = sum(each.lost_iterations or 0 for each in recovery.history)
            assert recovery.lost_iterations == lost

    @invariant()
    def the_ledger_adds_up_to_the_wall_clock(self) -> None:
        recipe, now = self.operator.api.recipe, self.cluster.now
        status, dropped = read_status(recipe.get("status"))
        assert dropped == ()
        if status.ledger is None:
            return
        found = account(status.ledger, self.operator.recovery.history, now)
        created = seconds(recipe["metadata"]["creationTimestamp"]) or 0.0
        assert sum(found.ticks.values()) == round((now - created) * TICKS)
        assert min(found.ticks.values(), default=0) >= 0
        assert len(status.ledger.marks) <= MAX_MARKS
        assert len(status.ledger.losses) <= MAX_LOSSES
        if status.phase in ("Succeeded", "Failed"):
            assert len(status.ledger.marks) == 1, "the time of a run that is over is settled"

    def teardown(self) -> None:
        try:
            if hasattr(self, "operator"):
                self.run_to_the_end()
        finally:
            if hasattr(self, "operator"):
                self.operator.close()

    def run_to_the_end(self) -> None:
        """Without further faults, the run must end or wait for capacity; failed nodes stay failed."""
        self.cluster.training_operator = self.operator.reachable = True
        until = self.cluster.now + PATIENCE
        while self.operator.end is None and self.cluster.now < until:
            self.time_passes(6)
            self.one_failure_costs_at_most_one_restart()
        self.the_totals_match_the_history()
        if self.operator.end == "Failed":
            self.time_passes(60)
            assert self.cluster.job is None, "a failed run releases its accelerators"
            assert not self.cluster.pods, "no pod is left over"
        elif self.operator.end is None:
            waits = waits_for_capacity(self.cluster, self.operator.recovery, self.limits, self.has_plan)
            assert waits, "neither ended nor waiting for capacity"
        else:
            assert self.operator.end == "Succeeded"


def waits_for_capacity(
    cluster: Cluster, recovery: RecoveryStatus, limits: Limits, has_plan: Callable[[int], bool]
) -> bool:
    """Whether pods wait, and nothing that the recipe allows could schedule them."""
    waiting = [pod for pod in cluster.pods if pod.node is None]
    if not waiting or any(set(cluster.free()) - pod.avoids for pod in waiting):
        return False
    if any(set(cluster.free()) & (pod.avoids | set(recovery.nodes_avoided)) for pod in waiting):
        return False
    if limits.elastic is None or cluster.job is None:
        return True
    bound = sum(pod.node is not None and cluster.ready(pod.node) for pod in cluster.pods) * PER_NODE
    fewest = limits.elastic.min_count
    return not any(has_plan(count) for count in range(fewest, bound + 1, PER_NODE))


TestWalk = Walk.TestCase
TestWalk.settings = settings(
    max_examples=int(os.environ.get("RECOVERY_WALKS", "10")),
    # The same walks each time, so that a change fails by its own fault; new ones where a number is given.
    derandomize="RECOVERY_WALKS" not in os.environ,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
