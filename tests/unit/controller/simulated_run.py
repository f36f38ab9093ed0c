"""A run in a simulated cluster with its operator, as tests drive it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.api_resources import Resource
from megatron_operator.lifecycle.desired import Config

from tests.unit.controller import whole_operator
from tests.unit.controller.api_in_memory import ApiInMemory
from tests.unit.controller.simulated_cluster import Cluster, Node
from tests.unit.controller.whole_operator import WholeOperator, recipe_spec

CLAIM = "mine"


class Run:
    """A run of two pods on three nodes with a checkpoint claim of the user's, and its operator."""

    def __init__(self, planning: Any = None) -> None:
        self.cluster = Cluster({f"node-{index}": Node(f"node-{index}") for index in range(3)})
        self.api = ApiInMemory(
            self.cluster, {**recipe_spec(16), "checkpoint": {"volume": {"claimName": CLAIM}}}
        )
        self.api.claims[CLAIM] = {"metadata": {"name": CLAIM}}
        self.operator = WholeOperator(self.api, lambda _seen, _decision: None, planning, behind=False)

    def until(self, reached: Callable[[], bool], seconds: int = 600) -> None:
        for _ in range(seconds):
            if reached():
                return
            self.cluster.pass_time(1)
            self.operator.reconcile()
        raise AssertionError(f"not reached: {self.status}")

    def trains(self, pods: int = 2) -> bool:
        """Whether so many pods train beyond the newest checkpoint, and the status reports it."""
        gang = len(self.cluster.gang) == pods and self.cluster.training
        return gang and self.status.get("phase") == "Training" and self.status["progress"]["iteration"] > 0

    @property
    def status(self) -> Any:
        return self.api.recipe.get("status") or {}

    @property
    def incidents(self) -> list[Any]:
        return list(self.status["recovery"].get("history", []))

    def edit(self, **spec: Any) -> None:
        """Replace sections of the spec."""
        recipe = self.api.recipe
        before = recipe["metadata"]
        version = {"resourceVersion": str(int(before["resourceVersion"]) + 1)}
        metadata = before | version | {"generation": before["generation"] + 1}
        self.api.recipe = recipe | {"metadata": metadata, "spec": recipe["spec"] | spec}

    def edit_count(self, count: int) -> None:
        self.edit(accelerator=self.api.recipe["spec"]["accelerator"] | {"count": count})

    def condition(self, kind: str) -> Any:
        """The condition of this type; empty when it is not set."""
        conditions = self.status.get("conditions", [])
        return next((each for each in conditions if each["type"] == kind), {})


def lose_a_race_for_a_quota(run: Run, of: Resource, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first object of this resource is not created, as somebody else changes a ResourceQuota's counts."""
    create, pending = run.api.create, [of]

    async def conflicting(resource: Resource, body: Any) -> Any:
        if resource in pending:
            pending.remove(resource)
            raise ApiError(409, "Conflict", "Operation cannot be fulfilled on resourcequotas")
        return await create(resource, body)

    monkeypatch.setattr(run.api, "create", conflicting)


@contextmanager
def run_on(platform: PlatformConfig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A run whose operator has this platform."""
    monkeypatch.setattr(whole_operator, "CONFIG", Config(platform, catalog.load()))
    run = Run()
    yield run
    run.operator.close()
