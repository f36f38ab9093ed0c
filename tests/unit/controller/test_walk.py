"""The walks of tests/unit/recovery with the controller itself: the reconciler, whole, over an API in memory.

`make test` walks the same 15 ways each time; `RECOVERY_WALKS=5000 pytest tests/unit/controller/test_walk.py`
as many others as it says.
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from hypothesis import HealthCheck, settings
from megatron_operator import catalog
from megatron_operator.api.conditions import Phase
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.status import RecoveryStatus
from megatron_operator.controller import capacity_finder, node_reader, reconciler
from megatron_operator.controller.capacity_finder import RoomFinder
from megatron_operator.controller.config_source import Known
from megatron_operator.controller.node_reader import Nodes
from megatron_operator.controller.progress_poller import Reading
from megatron_operator.controller.reconciler import Reconciler
from megatron_operator.controller.workqueue import Key
from megatron_operator.lifecycle import Decision, Limits, Observation
from megatron_operator.lifecycle.desired import want
from megatron_operator.lifecycle.recovery_policy import decide
from megatron_operator.lifecycle.status_builder import Draft

from tests.unit.controller.api_in_memory import NAME, NAMESPACE, UID, ApiInMemory, DiedError
from tests.unit.lifecycle.simulated_cluster import TOTAL, Cluster
from tests.unit.lifecycle.test_walk import Walk

KEY = Key(NAMESPACE, NAME)
KNOWN = Known(
    PlatformConfig.model_validate({"accelerators": {"h100-sxm": {}}, "image": "trainer"}), catalog.load()
)


def spec(count: int, limits: Limits | None = None) -> dict[str, Any]:
    """A recipe; without limits, one that nothing happens to."""
    body: dict[str, Any] = {
        "recipe": "llama3-8b",
        "accelerator": {"type": "h100-sxm", "count": count},
        "data": {"mockData": True},
    }
    if limits is not None:
        body["recovery"] = {
            "maxRestarts": limits.max_restarts,
            "nodes": {"avoidAfter": limits.avoid_after},
        }
        if (elastic := limits.elastic) is not None:
            body["recovery"]["elastic"] = {
                "minCount": elastic.min_count,
                "shrinkAfter": int(elastic.shrink_after),
                "growAfter": int(elastic.grow_after),
            }
    return body


@cache
def plannable(asked: int, count: int) -> bool:
    """Whether the planner lays the run out on so many accelerators with the batch that it has on all."""

    def batch(on: int) -> int:
        body = {"metadata": {"name": NAME, "namespace": NAMESPACE, "uid": UID}, "spec": spec(asked)}
        return want(Draft.of(body, 0.0), KNOWN, on).plan.global_batch_size

    try:
        return batch(count) == batch(asked)
    except InvalidRecipeError:
        return False


class Ears:
    """Stands where the poller does."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self.cluster, self._clock = cluster, clock
        self._reading: Reading | None = None
        self._moved: tuple[Any, float] = (None, 0.0)
        self._heard_at = 0.0

    def listen(self) -> None:
        """Take what the pods say now."""
        cluster = self.cluster
        motion = (cluster.training, cluster.iteration, cluster.generation)
        if motion != self._moved[0]:
            self._moved = motion, cluster.now
        report = {
            "phase": "training" if cluster.training else "rendezvous",
            "iteration": cluster.iteration,
            "trainIters": TOTAL,
            "generation": cluster.generation,
            "stepSeconds": 1.0,
            "resumedFrom": cluster.resumed_from,
            "checkpointIteration": cluster.checkpoint or None,
            "incidents": cluster.incidents,
        }
        self._reading = Reading(report, 0.0, 0, cluster.now - self._moved[1])
        self._heard_at = cluster.now

    def reading(self, _key: Key) -> Reading | None:
        if self._reading is None:
            return None
        return replace(self._reading, answered=self._clock() - (self.cluster.now - self._heard_at))

    def watch(self, _key: Key, _targets: object) -> None: ...

    def forget(self, _key: Key) -> None:
        self._reading = None


class SourcesInMemory:
    async def known(self) -> Known:
        return KNOWN


class WholeOperator:
    """The operator of a walk, made of the controller's own parts."""

    def __init__(self, api: ApiInMemory, judge: Any) -> None:
        self.api, self._judge = api, judge
        self.heard = True
        self.runner = asyncio.Runner()
        clock = SimpleNamespace(monotonic=lambda: api.cluster.now)
        self._patches = [patch.object(module, "time", clock) for module in (node_reader, capacity_finder)]
        self._patches.append(patch.object(reconciler, "decide", self._decide))
        for each in self._patches:
            each.start()
        self._start()

    def _start(self) -> None:
        api: Any = self.api
        self._ears = Ears(self.api.cluster, self.api.clock.now)
        sources: Any = SourcesInMemory()
        ears: Any = self._ears
        finder = RoomFinder(api, sources, allowed=True)
        self._reconciler = Reconciler(api, Nodes(api, allowed=True), sources, finder, ears)

    def close(self) -> None:
        for each in self._patches:
            each.stop()
        self.runner.close()

    def _decide(self, seen: Observation) -> Decision:
        decision = decide(seen)
        self._judge(seen, decision)
        return decision

    @property
    def calls_to_live(self) -> int | None:
        return self.api.calls_to_live

    @calls_to_live.setter
    def calls_to_live(self, calls: int | None) -> None:
        self.api.calls_to_live = calls

    @property
    def status(self) -> Any:
        status = self.api.recipe.get("status") or {}
        phase = status.get("phase")
        over = phase if phase in (Phase.SUCCEEDED, Phase.FAILED) else None
        return SimpleNamespace(
            over=over, recovery=RecoveryStatus.model_validate(status.get("recovery") or {})
        )

    def look(self) -> None:
        cluster = self.api.cluster
        for pod in cluster.pods:
            self._reconciler.note_pod(KEY, self.api.pod(pod))
        if self.heard and cluster.alive():
            self._ears.listen()
        going = any(pod.deleted_at is not None for pod in cluster.pods)
        self.api.deleted.clear()
        try:
            self.runner.run(self._reconciler(KEY))
        except DiedError:
            self._start()
        goes_on = self.status.recovery.restart_before is not None
        assert not (going and self.api.deleted) or goes_on, "deletes while pods are being deleted"


class ControllerWalk(Walk):
    """The same faults and the same properties."""

    def new_operator(self) -> Any:
        return WholeOperator(ApiInMemory(self.cluster, spec(self.asked, self.limits)), self.judge)

    def plannable(self, count: int) -> bool:
        return plannable(self.asked, count)

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            if hasattr(self, "operator"):
                self.operator.close()


TestControllerWalk = ControllerWalk.TestCase
TestControllerWalk.settings = settings(
    max_examples=int(os.environ.get("RECOVERY_WALKS", "15")),
    # The same ways each time, so that a change fails by its own fault; new ways where more are asked for.
    derandomize="RECOVERY_WALKS" not in os.environ,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
