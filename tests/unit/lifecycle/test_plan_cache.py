"""The same content is planned once, and everything that a plan depends on is content."""

import pickle
from dataclasses import replace
from typing import Any

import pytest
from megatron_operator import catalog, planner
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.lifecycle.desired import Config, DesiredState, desired_state
from megatron_operator.lifecycle.plan_cache import PlanCache
from megatron_operator.lifecycle.status_builder import StatusBuilder

PLATFORM: dict[str, Any] = {"accelerators": {"h100-sxm": {}}, "image": "trainer"}
SPEC: dict[str, Any] = {
    "recipe": "llama3-8b",
    "accelerator": {"type": "h100-sxm", "count": 16},
    "data": {"mockData": True},
}


@pytest.fixture
def config() -> Config:
    return Config(PlatformConfig.model_validate(PLATFORM), catalog.load())


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the recipes that were planned, not found."""
    names: list[str] = []
    admit = planner.admit

    def recorded(name: str, *rest: Any, **options: Any) -> Any:
        names.append(name)
        return admit(name, *rest, **options)

    monkeypatch.setattr(planner, "admit", recorded)
    return names


def recipe(spec: dict[str, Any], name: str = "run", namespace: str = "default") -> StatusBuilder:
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-of-{name}", "generation": 1}
    return StatusBuilder.of({"metadata": metadata, "spec": spec}, 0.0)


def planned_alone(status: StatusBuilder, count: int | None = None) -> DesiredState:
    """The desired state by a configuration that has planned nothing else."""
    return desired_state(status, Config(PlatformConfig.model_validate(PLATFORM), catalog.load()), count)


def test_recipes_that_ask_for_the_same_are_planned_once(config: Config, planned: list[str]) -> None:
    desired_state(recipe(SPEC, "first"), config)
    second = desired_state(recipe(SPEC, "second"), config)
    assert planned == ["first"]
    assert second == planned_alone(recipe(SPEC, "second"))
    assert second.manifests.job["metadata"]["name"] == "second"


@pytest.mark.parametrize(
    "other",
    [
        {"accelerator": {"type": "h100-sxm", "count": 32}},
        {"training": {"globalBatchSize": 64}},
        {"env": {"A": "1"}},
        {"recovery": {"elastic": {"minCount": 8}}},
    ],
)
def test_another_spec_is_planned_by_itself(config: Config, planned: list[str], other: dict[str, Any]) -> None:
    desired_state(recipe(SPEC, "first"), config)
    found = desired_state(recipe(SPEC | other, "second"), config)
    assert planned == ["first", "second"]
    assert found == planned_alone(recipe(SPEC | other, "second"))


def test_the_order_of_variables_is_kept(config: Config) -> None:
    for env in ({"A": "1", "B": "2"}, {"B": "2", "A": "1"}):
        spec = SPEC | {"env": env}
        assert desired_state(recipe(spec), config).job_hash == planned_alone(recipe(spec)).job_hash


def test_another_namespace_has_limits_of_its_own() -> None:
    limited = PLATFORM | {"namespaces": {"limited": {"maxAccelerators": 8}}}
    config = Config(PlatformConfig.model_validate(limited), catalog.load())
    desired_state(recipe(SPEC), config)
    with pytest.raises(InvalidRecipeError, match="limited"):
        desired_state(recipe(SPEC, namespace="limited"), config)


def test_another_count_and_the_plan_before_it_are_planned_by_themselves(
    config: Config, planned: list[str]
) -> None:
    first = recipe(SPEC | {"recovery": {"elastic": {"minCount": 8}}})
    plan = desired_state(first, config).plan
    shrunk = desired_state(first, config, 8)
    running = replace(first, current=first.current.model_copy(update={"plan": plan}))
    kept = desired_state(running, config, 8)
    assert len(planned) == 3
    assert shrunk == planned_alone(first, 8)
    assert kept == planned_alone(running, 8)


def test_a_checkpoint_does_not_need_another_plan(config: Config, planned: list[str]) -> None:
    first = recipe(SPEC)
    desired_state(first, config)
    status = {"checkpoint": {"iteration": 5}}
    trained = StatusBuilder.of(first.body | {"status": status}, 0.0)
    found = desired_state(trained, config)
    assert planned == ["run"]
    assert found == planned_alone(trained)


def test_a_recipe_that_cannot_run_is_refused_each_time(config: Config) -> None:
    for _ in range(2):
        with pytest.raises(InvalidRecipeError, match="unknown"):
            desired_state(recipe(SPEC | {"recipe": "unknown"}), config)


def test_another_process_begins_with_no_plans(config: Config, planned: list[str]) -> None:
    desired_state(recipe(SPEC), config)
    copy: Config = pickle.loads(pickle.dumps(config))
    desired_state(recipe(SPEC), copy)
    assert planned == ["run", "run"]


def test_who_changes_what_the_cache_returned_changes_nothing_in_it() -> None:
    cache = PlanCache()
    for _ in range(3):
        cache.get("content", lambda: ["planned"]).append("changed")
    assert cache.get("content", lambda: ["planned again"]) == ["planned"]


def test_one_and_its_text_are_different_keys() -> None:
    cache = PlanCache()
    assert [cache.get(key, lambda key=key: key) for key in ({1: ""}, {"1": ""}, {True: ""})] == [
        {1: ""},
        {"1": ""},
        {True: ""},
    ]


def test_the_least_used_go_first_when_the_plans_are_too_large() -> None:
    made: list[str] = []

    def get(name: str) -> None:
        def make() -> bytes:
            made.append(name)
            return bytes(400)

        cache.get(name, make)

    cache = PlanCache(capacity=1000)
    for name in ("a", "b", "a", "c", "a", "b"):
        get(name)
    assert made == ["a", "b", "c", "b"]


def test_a_plan_larger_than_all_others_displaces_none() -> None:
    cache = PlanCache(capacity=1000)
    cache.get("small", lambda: "planned")
    cache.get("large", lambda: bytes(2000))
    assert cache.get("small", lambda: "planned again") == "planned"
