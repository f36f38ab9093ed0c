"""Events of the watches: what they enqueue, and what kopf does with their objects."""

import asyncio
import logging
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
from kopf import Body, BodyEssence, OperatorRegistry
from kopf._cogs.clients import fetching
from kopf._cogs.structs.references import Resource
from megatron_operator.api.conditions import Phase
from megatron_operator.api.labels import LABEL_RECIPE
from megatron_operator.api.platform import Maintenance
from megatron_operator.controller import handlers
from megatron_operator.controller.api_client import PAGE, ApiError
from megatron_operator.controller.first_runs import FirstRuns
from megatron_operator.controller.handlers import START_COALESCE, Operator, kopf_settings, register
from megatron_operator.controller.object_cache import Caches
from megatron_operator.controller.pod_end_cache import PodEndCache
from megatron_operator.controller.settings import Settings
from megatron_operator.controller.workqueue import COALESCE, NORMAL, URGENT
from megatron_operator.lifecycle.status_builder import RecipeKey


class Queue:
    """Records what is enqueued."""

    def __init__(self) -> None:
        self.added: list[tuple[RecipeKey, float, float]] = []

    def add(self, key: RecipeKey, delay: float = COALESCE, patience: float = NORMAL) -> None:
        self.added.append((key, delay, patience))


def recipe(phase: str | None = None) -> dict[str, Any]:
    metadata = {"name": "run", "namespace": "default", "uid": "a", "generation": 1, "resourceVersion": "1"}
    return {"metadata": metadata, "status": {"phase": phase} if phase else {}}


JOB = {
    "metadata": {
        "name": "run",
        "namespace": "default",
        "uid": "b",
        "resourceVersion": "1",
        "labels": {LABEL_RECIPE: "run"},
    }
}


class Planning:
    """Records which recipes have changed."""

    def __init__(self) -> None:
        self.changed: list[RecipeKey] = []

    def recipe_changed(self, key: RecipeKey) -> None:
        self.changed.append(key)


@pytest.fixture
def operator() -> Any:
    operator: Any = Operator(Settings(), None, None)  # type: ignore[arg-type]
    operator.caches, operator.queue, operator._planning = Caches(), Queue(), Planning()
    return operator


def delay_of_the_next(operator: Any) -> float:
    operator.queue.added.clear()
    operator.job_event(JOB, gone=False)
    ((_, delay, _),) = operator.queue.added
    return float(delay)


def test_a_new_recipe_is_reconciled_at_once_and_before_others(operator: Any) -> None:
    operator.recipe_event(recipe(), gone=False)
    assert operator.queue.added == [(RecipeKey("default", "run"), 0, URGENT)]


def test_a_start_has_no_status_and_a_name_that_had_no_run(operator: Any) -> None:
    key, first_runs = RecipeKey("default", "run"), operator.caches.first_runs
    assert not operator._is_start(key), "an unknown recipe"
    operator.recipe_event(recipe(), gone=False)
    assert not operator._is_start(key), "before the first lists pods of an earlier gang may be left"
    first_runs.listed([])
    assert operator._is_start(key)
    first_runs.begin(key)
    assert not operator._is_start(key), "its pods have to be listed"
    operator.caches.first_runs = FirstRuns()
    operator.caches.first_runs.listed([])
    started = recipe(Phase.STARTING)
    started["metadata"]["resourceVersion"] = "2"
    operator.recipe_event(started, gone=False)
    assert not operator._is_start(key)


def test_what_is_known_of_a_deleted_run_is_dropped_before_what_can_wait(operator: Any) -> None:
    operator.usage = SimpleNamespace(deleted=lambda _recipe: None)
    operator.recipe_event(recipe(), gone=True)
    assert [patience for *_, patience in operator.queue.added] == [URGENT]


def test_after_a_restart_edited_recipes_are_reconciled_before_those_whose_status_is_up_to_date(
    operator: Any,
) -> None:
    known, edited = recipe(Phase.TRAINING), recipe(Phase.TRAINING)
    for each, observed in ((known, 1), (edited, 0)):
        each["status"]["observedGeneration"] = observed
    edited["metadata"]["name"] = "edited"
    for each in (known, edited):
        operator.recipe_event(each, gone=False)
    assert [patience for _, _, patience in operator.queue.added] == [NORMAL, URGENT]


@pytest.mark.parametrize("error", [None, ApiError(503, "Unavailable", "not now")])
async def test_the_watch_of_nodes_begins_with_the_keys_of_the_platform_and_without_it_all_the_same(
    operator: Any, error: Exception | None
) -> None:
    done: list[Any] = []

    async def maintenance() -> Maintenance:
        if error is not None:
            raise error
        return Maintenance(start_times=["example.com/start"])

    async def run() -> None:
        done.append("runs")

    operator.config = SimpleNamespace(maintenance=maintenance)
    await operator._watch_nodes(SimpleNamespace(follow_start_times=done.append, run=run))
    assert done == [*([] if error else [["example.com/start"]]), "runs"]


async def test_a_change_of_the_platform_that_others_find_while_recipes_are_listed_is_not_missed(
    operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = SimpleNamespace(revision=1)
    lists: list[int] = []

    async def refresh() -> None: ...

    async def find(*_: Any) -> list[Any]:
        lists.append(config.revision)
        config.revision = 2
        return []

    config.refresh = refresh
    operator.config, operator.api = config, SimpleNamespace(find=find)
    monkeypatch.setattr(handlers, "CONFIG_INTERVAL", 0.0)
    watching = asyncio.create_task(operator._watch_config())
    for _ in range(10):
        await asyncio.sleep(0)
    watching.cancel()
    assert lists == [1, 2]


@pytest.mark.parametrize(
    ("phase", "deleting", "gone", "patience"),
    [
        ("Running", {}, False, NORMAL),
        ("Failed", {}, False, URGENT),
        ("Running", {"deletionTimestamp": "2026-01-01T00:00:00Z"}, False, URGENT),
        ("Running", {}, True, URGENT),
    ],
)
def test_a_pod_that_a_run_loses_is_more_urgent_than_its_other_events(
    operator: Any, phase: str, deleting: dict[str, str], gone: bool, patience: float
) -> None:
    operator.recipe_event(recipe(Phase.STARTING), gone=False)
    operator.queue.added.clear()
    operator.snapshots = SimpleNamespace(pod_ends=PodEndCache())
    pod = {"metadata": JOB["metadata"] | deleting, "status": {"phase": phase}}
    operator.pod_event(JOB | pod, gone=gone)
    assert operator.queue.added == [(RecipeKey("default", "run"), START_COALESCE, patience)]


def test_a_deletion_that_was_missed_is_as_urgent_as_one_that_was_seen(operator: Any) -> None:
    operator._lost(RecipeKey("default", "run"))
    assert operator.queue.added == [(RecipeKey("default", "run"), COALESCE, URGENT)]


def test_only_a_new_generation_needs_a_configuration_that_is_read_since(operator: Any) -> None:
    for phase in (None, Phase.STARTING, Phase.TRAINING):
        operator.recipe_event(recipe(phase), gone=False)
    edited = recipe(Phase.TRAINING)
    edited["metadata"]["generation"] = 2
    operator.recipe_event(edited, gone=False)
    assert operator._planning.changed == [RecipeKey("default", "run")] * 2


def test_events_of_a_run_that_starts_are_collected_for_longer(operator: Any) -> None:
    operator.recipe_event(recipe(Phase.STARTING), gone=False)
    assert delay_of_the_next(operator) == START_COALESCE


@pytest.mark.parametrize("phase", [Phase.TRAINING, Phase.RECOVERING, Phase.FAILED])
def test_events_of_another_run_are_not(operator: Any, phase: Phase) -> None:
    operator.recipe_event(recipe(Phase.STARTING), gone=False)
    operator.recipe_event(recipe(phase), gone=False)
    assert delay_of_the_next(operator) == COALESCE


def test_events_after_a_run_that_was_deleted_while_it_started_are_not(operator: Any) -> None:
    deleted: list[Any] = []
    operator.usage = SimpleNamespace(deleted=deleted.append)
    operator.recipe_event(recipe(Phase.STARTING), gone=False)
    operator.recipe_event(recipe(Phase.STARTING), gone=True)
    assert delay_of_the_next(operator) == COALESCE
    assert deleted == [recipe(Phase.STARTING)], "what it has used is counted"


class Uncopied(dict[str, Any]):
    """Part of an object of which no copy is made."""

    def __deepcopy__(self, _memo: object) -> "Uncopied":
        raise AssertionError("the object is copied")


def test_kopf_watches_no_kind_of_training_job() -> None:
    """docs/security.md: a namespaced release has no right to watch their definitions."""
    registry, operator = OperatorRegistry(), object.__new__(Operator)
    register(registry, operator)
    selectors = registry._watching.get_all_selectors()
    assert {(each.group, each.plural or each.any_name) for each in selectors} == {
        ("megatron.training", "megatronrecipes"),
        ("batch", "jobs"),
    }


def test_kopf_copies_no_object() -> None:
    storages = kopf_settings(clusterwide=True).persistence
    body = Body({"metadata": {"annotations": {}}, "spec": Uncopied(large="")})
    with pytest.raises(AssertionError):
        deepcopy(body["spec"])
    essence = storages.diffbase_storage.build(body=body)
    assert storages.progress_storage.clear(essence=essence) == BodyEssence()
    assert storages.diffbase_storage.fetch(body=body) == essence, "kopf has no difference to describe"


async def test_kopf_has_no_more_than_a_page_of_a_fleets_first_list_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    async def get(url: str, **_: Any) -> Any:
        asked.append(url)
        return {
            "items": [],
            "metadata": {"resourceVersion": "1", "continue": "" if len(asked) == 2 else "next"},
        }

    monkeypatch.setattr(fetching.api, "get", get)
    settings, log = kopf_settings(clusterwide=True), logging.getLogger(__name__)
    recipes = Resource("megatron.training", "v1beta1", "megatronrecipes", namespaced=True)
    async for _ in fetching.fetch_objs(settings=settings, resource=recipes, namespace=None, logger=log):
        pass
    assert len(asked) == 2
    assert all(f"limit={PAGE}&" in f"{url}&" for url in asked)
