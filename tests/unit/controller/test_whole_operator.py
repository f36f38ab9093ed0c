"""The controller's own parts over a simulated cluster: what a person or a clock does to it, once each."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.controller.api_in_memory import ApiInMemory
from tests.unit.controller.test_walk import WholeOperator, spec
from tests.unit.lifecycle.simulated_cluster import Cluster, Node

HOUR = 3600.0
CLAIM = "mine"


class Run:
    """A run of two pods on three nodes whose checkpoints go to a claim of the user's, and its operator."""

    def __init__(self) -> None:
        self.cluster = Cluster({f"node-{index}": Node(f"node-{index}") for index in range(3)})
        self.api = ApiInMemory(self.cluster, {**spec(16), "checkpoint": {"volume": {"claimName": CLAIM}}})
        self.api.claims[CLAIM] = {}
        self.operator = WholeOperator(self.api, judge=lambda _seen, _decision: None)

    def until(self, reached: Callable[[], bool], seconds: int = 600) -> None:
        for _ in range(seconds):
            if reached():
                return
            self.cluster.pass_time(1)
            self.operator.look()
        raise AssertionError(f"not reached: {self.status}")

    def trains(self, pods: int = 2) -> bool:
        """With so many pods, beyond the newest checkpoint, and the status says so."""
        gang = len(self.cluster.gang) == pods and self.cluster.training
        return gang and self.status.get("phase") == "Training" and self.status["progress"]["iteration"] > 0

    @property
    def status(self) -> Any:
        return self.api.recipe.get("status") or {}

    @property
    def incidents(self) -> list[Any]:
        return list(self.status["recovery"].get("history", []))

    def edit_count(self, count: int) -> None:
        recipe = self.api.recipe
        metadata = recipe["metadata"] | {"generation": recipe["metadata"]["generation"] + 1}
        accelerator = recipe["spec"]["accelerator"] | {"count": count}
        self.api.recipe = recipe | {
            "metadata": metadata,
            "spec": recipe["spec"] | {"accelerator": accelerator},
        }


@pytest.fixture
def run() -> Iterator[Run]:
    run = Run()
    run.until(run.trains)
    yield run
    run.operator.close()


@pytest.mark.parametrize("calls", [None, *range(6)])
def test_an_edited_count_is_told_as_one_resize_wherever_the_operator_dies(
    run: Run, calls: int | None
) -> None:
    run.edit_count(8)
    run.operator.calls_to_live = calls
    run.until(lambda: run.trains(pods=1))
    assert [each["kind"] for each in run.incidents] == ["resize"]
    assert run.incidents[0]["cause"] == "accelerator.count was edited: 16 before, 8 now"
    assert run.incidents[0]["recoveredAt"]
    assert run.status["recovery"].get("restarts", 0) == 0
    assert "elastic" not in run.status["recovery"], "it has what it asks for"


def test_an_edited_count_is_told_though_a_claim_is_gone_when_the_operator_is_back(run: Run) -> None:
    run.edit_count(8)
    # It lives to delete the job, and dies before the status says why.
    run.operator.calls_to_live = 1
    run.until(lambda: run.cluster.job is None)
    assert not run.incidents
    claim = run.api.claims.pop(CLAIM)
    run.until(lambda: "VolumeClaimMissing" in str(run.status["conditions"]))
    run.api.claims[CLAIM] = claim
    run.until(lambda: run.trains(pods=1))
    assert [each["kind"] for each in run.incidents] == ["resize"]


def test_an_edit_that_leaves_the_count_is_no_resize(run: Run) -> None:
    before = run.cluster.job
    recipe = run.api.recipe
    generation = recipe["metadata"]["generation"] + 1
    run.api.recipe = recipe | {
        "metadata": recipe["metadata"] | {"generation": generation},
        "spec": recipe["spec"] | {"checkpoint": recipe["spec"]["checkpoint"] | {"saveInterval": 77}},
    }
    run.until(lambda: run.cluster.job not in (None, before) and run.trains())
    assert "resize" not in {each["kind"] for each in run.incidents}


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
@pytest.mark.parametrize("told", [False, True], ids=["before it is told", "when it is told"])
def test_a_clock_that_jumps_in_a_recovery_makes_one_incident_of_it(
    run: Run, ahead: float, told: bool
) -> None:
    run.cluster.delete_now(run.cluster.pods[1])
    if told:
        run.until(lambda: bool(run.incidents))
    run.api.ahead = ahead
    generation = run.cluster.generation
    run.until(lambda: run.cluster.generation > generation and run.trains())
    run.until(lambda: "recoveredAt" in run.incidents[-1])
    assert [each["kind"] for each in run.incidents] == ["pod"]
    assert run.status["recovery"]["restarts"] == 1
    run.api.ahead = 0.0
    run.until(lambda: run.cluster.iteration >= run.cluster.resumed_from + 100)
    assert [each["kind"] for each in run.incidents] == ["pod"], "nor does setting it right"
