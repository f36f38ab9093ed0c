"""A wait for a run returns only a state in which everything that was asked for holds at once."""

from typing import Any, cast

import pytest

from testkit import waiting
from testkit.api_server import Api, Object
from testkit.errors import ApiError
from testkit.run_state import Expected, RunState, read_run, wait_for_run


def condition(kind: str, reason: str, generation: int = 2) -> Object:
    return {
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": "",
        "observedGeneration": generation,
    }


def pod(name: str, phase: str = "Running", **metadata: Any) -> Object:
    return {
        "metadata": {"name": f"run-{name}", "uid": f"uid-of-{name}", **metadata},
        "spec": {"nodeName": "node-0"},
        "status": {"phase": phase},
    }


def recipe(*conditions: Object, version: str = "1", **status: Any) -> Object:
    return {
        "metadata": {"name": "run", "generation": 2, "resourceVersion": version},
        "status": {"phase": "Training", "observedGeneration": 2, "conditions": list(conditions), **status},
    }


JOB: Object = {
    "metadata": {"uid": "uid-of-job"},
    "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 1}}},
}
STATE = RunState(
    recipe(condition("Running", "Training"), progress={"iteration": 10}, recovery={"restarts": 1}),
    JOB,
    {"master-0": pod("master-0"), "worker-0": pod("worker-0")},
)


@pytest.mark.parametrize(
    "expected",
    [
        {"phase": "Training"},
        {"phase": ("Starting", "Training")},
        {"conditions": {"Running": "Training", "Failed": None}},
        {"status": {"progress": {"iteration": 10}, "recovery": {"restarts": 1}}},
        {"pods": 2, "without": ["another uid"]},
        {"job": True, "observed": True, "where": lambda state: state.replicas == 2},
    ],
)
def test_a_state_that_holds(expected: dict[str, Any]) -> None:
    assert Expected(**expected).missing_in(STATE) == []


@pytest.mark.parametrize(
    ("expected", "missing"),
    [
        ({"phase": "Failed"}, "phase Failed"),
        ({"conditions": {"Running": "PodsRunning"}}, "condition Running PodsRunning"),
        ({"conditions": {"Running": None}}, "condition Running absent"),
        ({"conditions": {"Planned": "Planned"}}, "condition Planned Planned"),
        ({"status": {"recovery": {"restarts": 2}}}, "status.recovery.restarts 2"),
        ({"status": {"checkpoint": {"iteration": 5}}}, "status.checkpoint.iteration 5"),
        ({"pods": 3}, "3 running pods"),
        ({"pods": 0}, "0 running pods"),
        ({"without": ["uid-of-worker-0"]}, "the objects ['uid-of-worker-0'] replaced"),
        ({"without": ["uid-of-job"]}, "the objects ['uid-of-job'] replaced"),
        ({"job": False}, "no job"),
        ({"where": lambda state: state.replicas == 3}, "the requirement `where`"),
    ],
)
def test_what_is_missing_is_named(expected: dict[str, Any], missing: str) -> None:
    assert Expected(**expected).missing_in(STATE) == [missing]


def test_a_condition_of_an_earlier_generation_does_not_count() -> None:
    state = RunState(recipe(condition("Planned", "Planned", generation=1)), None, {})
    assert Expected(conditions={"Planned": "Planned"}).missing_in(state) == ["condition Planned Planned"]


def test_a_generation_that_is_not_carried_out_does_not_count() -> None:
    state = RunState(recipe(observedGeneration=1), None, {})
    assert Expected(observed=True).missing_in(state) == ["observedGeneration 2"]


def test_pods_and_jobs_that_are_being_deleted_do_not_count() -> None:
    deleted = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    state = RunState(
        recipe(),
        {**JOB, "metadata": {"uid": "uid-of-job", **deleted}},
        {"master-0": pod("master-0"), "worker-0": pod("worker-0", **deleted)},
    )
    assert Expected(pods=2, job=True).missing_in(state) == ["2 running pods", "a job"]
    assert state.replicas == 0


class ScriptedApi:
    """Returns the recipe's versions in order, the last one again and again."""

    def __init__(self, *recipes: Object | Exception) -> None:
        self.recipes = list(recipes)

    def find(self, kind: str, _namespace: str, _name: str) -> Object | None:
        if kind != "MegatronRecipe":
            return JOB
        found = self.recipes.pop(0) if len(self.recipes) > 1 else self.recipes[0]
        if isinstance(found, Exception):
            raise found
        return found

    def list(self, kind: str, _namespace: str, **_query: str) -> list[Object]:
        return [pod("master-0"), pod("worker-0")] if kind == "Pod" else []


def scripted(*recipes: Object | Exception) -> Api:
    return cast(Api, ScriptedApi(*recipes))


def test_a_recipe_that_changes_during_the_read_is_read_again() -> None:
    changed = scripted(recipe(version="1"), recipe(version="2"))
    assert read_run(changed, "ns", "run") is None
    state = read_run(changed, "ns", "run")
    assert state is not None
    assert state.pods.keys() == {"master-0", "worker-0"}


def test_an_unavailable_api_server_is_waited_for() -> None:
    api = scripted(ApiError(503, "unavailable"), recipe())
    assert wait_for_run(api, "ns", "run", Expected(phase="Training", pods=2)).phase == "Training"


def test_an_error_of_the_request_is_not_waited_for() -> None:
    with pytest.raises(ApiError, match="403"):
        wait_for_run(scripted(ApiError(403, "forbidden")), "ns", "run", Expected())


def test_a_timeout_names_what_is_missing_and_prints_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "load_factor", lambda: 1.0)
    api = scripted(recipe(condition("Running", "PodsRunning")))
    with pytest.raises(TimeoutError) as error:
        wait_for_run(api, "ns", "run", Expected(phase="Failed"), seconds=0.01)
    text = str(error.value)
    assert "run: phase Failed" in text
    assert "condition Running=True PodsRunning" in text
    assert "pod worker-0 uid-of-worker-0 Running on node-0" in text
