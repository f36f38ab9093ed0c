"""A run that starts or trains is judged by the caches; whatever else happens is judged by what is read."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from megatron_operator.controller import object_cache
from megatron_operator.controller.api_client import ApiError

from tests.unit.controller.simulated_cluster import TOTAL
from tests.unit.controller.simulated_run import Run


@pytest.fixture
def recorded_reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], list[str]]:
    """Begins to record the resources that the operator of a run reads."""

    def record(run: Run) -> list[str]:
        found: list[str] = []
        api: Any = run.api
        for name in ("get", "find"):
            method = getattr(api, name)

            def read(resource: Any, *rest: Any, _method: Callable[..., Any] = method, **named: Any) -> Any:
                found.append(resource.plural)
                return _method(resource, *rest, **named)

            monkeypatch.setattr(api, name, read)
        return found

    return record


@pytest.fixture
def reads(training_run: Run, recorded_reads: Callable[[Run], list[str]]) -> list[str]:
    """The resources that the operator of `training_run` reads from now on."""
    return recorded_reads(training_run)


@pytest.fixture
def waiting_run() -> Iterator[Run]:
    """A run whose pods have waited for nodes, all of which others use, for some seconds."""
    run = Run()
    for node in run.cluster.nodes.values():
        node.taken = True
    run.until(lambda: "gang" in run.status.get("recovery", {}))
    reconcile(run, 5)
    yield run
    run.operator.close()


def free(run: Run) -> None:
    """The others give the nodes up."""
    for node in run.cluster.nodes.values():
        node.taken = False


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


def test_a_run_that_waits_for_nodes_is_not_read(
    waiting_run: Run, recorded_reads: Callable[[Run], list[str]]
) -> None:
    reads = recorded_reads(waiting_run)
    reconcile(waiting_run, 120)
    assert reads == []
    assert waiting_run.condition("Running")["reason"] == "Unschedulable"


def test_how_far_pods_of_a_start_are_is_written_without_a_read(
    waiting_run: Run, recorded_reads: Callable[[Run], list[str]]
) -> None:
    reads = recorded_reads(waiting_run)
    free(waiting_run)
    waiting_run.until(lambda: waiting_run.condition("Running")["reason"] != "Unschedulable")
    assert reads == []
    waiting_run.until(waiting_run.trains)
    assert "pods" in reads, "that a run trains is judged by what is read"
    assert waiting_run.incidents == []


def test_a_start_is_not_written_over_a_recipe_that_has_changed_since_it_was_cached(waiting_run: Run) -> None:
    behind(waiting_run)
    waiting_run.edit_count(8)
    free(waiting_run)
    waiting_run.until(lambda: waiting_run.trains(pods=1))
    assert waiting_run.status["observedGeneration"] == waiting_run.api.recipe["metadata"]["generation"]


def test_iterations_alone_are_no_reason_to_reconcile_a_run_until_it_is_disturbed(training_run: Run) -> None:
    operator = training_run.operator
    training_run.until(lambda: training_run.cluster.iteration > 20)
    assert operator.rests
    training_run.cluster.fail(training_run.cluster.pods[1], 137, "was killed")
    reconcile(training_run)
    assert not operator.rests
    training_run.until(training_run.trains)
    reconcile(training_run, 2)
    assert operator.rests


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


def test_a_run_whose_gang_was_restarted_is_not_read_once_it_trains(
    training_run: Run, reads: list[str]
) -> None:
    training_run.cluster.hanging = True
    training_run.until(lambda: bool(training_run.incidents) and training_run.trains(), seconds=3600)
    reconcile(training_run, 2)
    reads.clear()
    before = training_run.status["progress"]["iteration"]
    training_run.until(lambda: training_run.status["progress"]["iteration"] > before)
    assert reads == []


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
