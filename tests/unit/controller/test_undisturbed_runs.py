"""A run that trains is judged by the caches; whatever else happens is judged by what is read."""

from collections.abc import Callable
from typing import Any

import pytest
from megatron_operator.controller import object_cache
from megatron_operator.controller.api_client import ApiError

from tests.unit.controller.simulated_cluster import TOTAL
from tests.unit.controller.simulated_run import Run


@pytest.fixture
def reads(training_run: Run, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The resources that the operator of `training_run` reads from now on."""
    found: list[str] = []
    api: Any = training_run.api
    for name in ("get", "find"):
        method = getattr(api, name)

        def recorded(resource: Any, *rest: Any, _method: Callable[..., Any] = method, **named: Any) -> Any:
            found.append(resource.plural)
            return _method(resource, *rest, **named)

        monkeypatch.setattr(api, name, recorded)
    return found


def reconcile(run: Run, seconds: int = 1) -> None:
    for _ in range(seconds):
        run.cluster.pass_time(1)
        run.operator.reconcile()


def behind(run: Run) -> None:
    """From now on the watches deliver nothing."""
    run.operator._deliver = lambda: None  # type: ignore[method-assign]


def test_a_run_that_trains_is_not_read(training_run: Run, reads: list[str]) -> None:
    training_run.until(lambda: "iteration" in training_run.status.get("checkpoint", {}))
    reads.clear()
    before = training_run.status["progress"]["iteration"]
    training_run.until(lambda: training_run.status["progress"]["iteration"] > before)
    assert reads == []


def test_a_run_with_a_pod_that_is_too_large_to_keep_is_read(
    training_run: Run, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_cache, "OBJECT_BYTES", 100)
    before = training_run.status["progress"]["iteration"]
    training_run.until(lambda: training_run.status["progress"]["iteration"] > before)
    assert "pods" in reads
    assert training_run.trains()


def test_a_disturbed_run_is_read(training_run: Run, reads: list[str]) -> None:
    training_run.cluster.fail(training_run.cluster.pods[1], 137, "was killed")
    reconcile(training_run)
    assert {"megatronrecipes", "pytorchjobs", "pods"} <= set(reads)


@pytest.mark.parametrize("drained", [False, True])
def test_a_pod_that_fails_or_is_drained_on_a_ready_node_costs_no_read_of_a_node(
    training_run: Run, reads: list[str], drained: bool
) -> None:
    pod = training_run.cluster.pods[1]
    if drained:
        training_run.cluster.delete(pod)
    else:
        training_run.cluster.fail(pod, 137, "was killed")
    training_run.operator.reconcile()
    training_run.until(lambda: bool(training_run.incidents) and training_run.trains())
    assert training_run.incidents[-1]["node"] == "node-1"
    assert "pods" in reads
    assert "nodes" not in reads


def test_a_replacement_is_counted_once_while_the_watches_are_silent(training_run: Run) -> None:
    behind(training_run)
    training_run.cluster.fail(training_run.cluster.pods[1], 137, "was killed")
    training_run.until(lambda: bool(training_run.incidents) and training_run.trains())
    reconcile(training_run, 120)
    assert training_run.status["recovery"]["restarts"] == 1


def test_a_run_that_ends_while_the_watches_are_silent_succeeds(training_run: Run) -> None:
    behind(training_run)
    training_run.cluster.iteration = TOTAL - 40
    training_run.until(lambda: training_run.status["phase"] == "Succeeded")


def test_a_cached_recipe_that_has_changed_is_read_before_the_status_is_written(
    training_run: Run, reads: list[str]
) -> None:
    training_run.until(
        lambda: training_run.cluster.iteration > training_run.status["progress"]["iteration"] + 5
    )
    reconcile(training_run)
    behind(training_run)
    recipe = training_run.api.recipe
    version = str(int(recipe["metadata"]["resourceVersion"]) + 1)
    training_run.api.recipe = recipe | {"metadata": recipe["metadata"] | {"resourceVersion": version}}
    before = training_run.status["progress"]["iteration"]
    try:
        training_run.until(lambda: training_run.status["progress"]["iteration"] > before)
    except ApiError as error:
        pytest.fail(f"the status of a version that is gone was written: {error}")
    assert "megatronrecipes" in reads
