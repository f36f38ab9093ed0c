"""A claim that exists keeps its size and storage class unless the recipe itself sets others."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.api_resources import CLAIMS, Resource
from megatron_operator.lifecycle.desired import Config

from tests.unit.controller import converting, whole_operator
from tests.unit.controller.api_in_memory import NAME, ApiInMemory
from tests.unit.controller.simulated_run import Run

CHECKPOINTS, DATA, PREPARE = f"{NAME}-checkpoints", f"{NAME}-data", f"{NAME}-prepare"
BEFORE = {"checkpoint": {"size": "2Ti", "storageClassName": "lustre"}, "dataStorageClassName": "lustre"}
PREPARED = {"volume": {"size": "1Gi"}, "prepare": {"source": "/text", "include": "*.txt"}}

Configure = Callable[..., None]


def size(spec: dict[str, Any]) -> str:
    return str(spec["resources"]["requests"]["storage"])


def refuse_changes(api: ApiInMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse, as the API server does, other classes of a claim, and other sizes where its class is fixed."""
    merge = api.merge

    async def merged(resource: Resource, target: Any, changes: Any) -> Any:
        if resource is CLAIMS:
            name = target["metadata"]["name"]
            before = deepcopy(api.claims[name])
            claim = await merge(resource, target, changes)
            kept = before["spec"].get("storageClassName"), size(before["spec"])
            if (claim["spec"].get("storageClassName"), size(claim["spec"])) != kept:
                api.claims[name] = before
                raise ApiError(422, "Invalid", "spec is immutable after creation")
            return claim
        return await merge(resource, target, changes)

    monkeypatch.setattr(api, "merge", merged)


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch) -> Configure:
    """Sets defaults of the platform."""

    def configured(**options: Any) -> None:
        platform = {"accelerators": {"h100-sxm": {}}, "image": "trainer", **BEFORE, **options}
        config = Config(PlatformConfig.model_validate(platform), catalog.load())
        monkeypatch.setattr(whole_operator, "CONFIG", config)

    configured()
    return configured


@pytest.fixture
def run(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A run that sets nothing about its checkpoint claim, where claims cannot be changed."""
    del configure
    run = Run()
    run.edit(checkpoint={})
    refuse_changes(run.api, monkeypatch)
    yield run
    run.operator.close()


def resume(run: Run) -> None:
    """Suspend the run, and resume it."""
    run.edit(suspend=True)
    run.until(lambda: run.status["phase"] == "Suspended" and not run.cluster.pods)
    run.edit(suspend=False)
    run.until(run.trains)


@pytest.mark.parametrize(
    "defaults",
    [
        {"size": "2Ti", "storageClassName": "weka"},
        {"size": "2Ti"},
        {"size": "1Ti", "storageClassName": "lustre"},
        {"size": "3Ti", "storageClassName": "lustre"},
    ],
    ids=["another class", "no class", "smaller", "larger"],
)
def test_a_run_resumes_on_its_claim_after_the_platform_has_other_defaults(
    run: Run, configure: Configure, defaults: dict[str, str]
) -> None:
    run.until(run.trains)
    before = deepcopy(run.api.claims[CHECKPOINTS])
    configure(checkpoint=defaults)
    for _ in range(2):
        resume(run)
        after = run.api.claims[CHECKPOINTS]
        assert after["spec"] == before["spec"]
        assert after["metadata"]["uid"] == before["metadata"]["uid"]


def test_an_edit_is_applied_after_the_platform_has_another_class(run: Run, configure: Configure) -> None:
    run.until(run.trains)
    first = run.cluster.job
    configure(checkpoint={"size": "2Ti", "storageClassName": "weka"})
    run.edit(env={"NCCL_DEBUG": "INFO"})
    run.until(lambda: run.cluster.job not in (None, first) and run.trains())


def test_a_claim_for_data_keeps_its_class_after_the_platform_has_another(
    run: Run, configure: Configure
) -> None:
    run.edit(data=PREPARED)
    converting.reconcile(run)
    before = deepcopy(run.api.claims[DATA]["spec"])
    assert (before["storageClassName"], size(before)) == ("lustre", "1Gi")
    first = run.api.batch_jobs[PREPARE]["metadata"]["uid"]
    configure(dataStorageClassName="weka")
    run.edit(data=PREPARED | {"prepare": {"source": "/text", "include": "*.md"}})
    converting.reconcile(run)
    assert run.api.batch_jobs[PREPARE]["metadata"]["uid"] != first, "the preparation is that of the edit"
    assert run.api.claims[DATA]["spec"] == before


def test_a_recipe_that_is_created_again_uses_its_retained_claim_of_another_class(
    run: Run, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.until(run.trains)
    configure(checkpoint={"size": "1Ti", "storageClassName": "weka"})
    again = Run()
    again.edit(checkpoint={"retainOnDelete": False})
    again.api.claims[CHECKPOINTS] = deepcopy(run.api.claims[CHECKPOINTS])
    refuse_changes(again.api, monkeypatch)
    again.until(again.trains)
    again.operator.close()
    claim = again.api.claims[CHECKPOINTS]
    assert claim["spec"] == run.api.claims[CHECKPOINTS]["spec"]
    assert claim["metadata"]["ownerReferences"], "everything else is changed"


@pytest.mark.parametrize("volume", [{"size": "1Ti"}, {"storageClassName": "weka"}], ids=["size", "class"])
def test_a_size_or_class_that_the_recipe_sets_is_refused_as_the_api_server_refuses_it(
    run: Run, volume: dict[str, str]
) -> None:
    run.until(run.trains)
    run.edit(checkpoint={"volume": volume})
    run.until(lambda: run.condition("Prepared").get("reason") == "VolumeClaimRefused")
    assert run.condition("Prepared")["message"] == "spec is immutable after creation"


@pytest.fixture
def expandable(configure: Configure) -> Iterator[Run]:
    """A run whose claim can be expanded."""
    del configure
    run = Run()
    run.edit(checkpoint={})
    yield run
    run.operator.close()


def test_a_size_that_the_recipe_sets_expands_the_claim_and_stays_once_it_is_removed(
    expandable: Run,
) -> None:
    run = expandable
    run.until(run.trains)
    for volume in ({"size": "4Ti"}, None):
        run.edit(checkpoint={"volume": volume} if volume else {})
        resume(run)
        spec = run.api.claims[CHECKPOINTS]["spec"]
        assert (size(spec), spec["storageClassName"]) == ("4Ti", "lustre")


def test_a_recipe_that_sets_the_size_of_a_changed_platform_gets_it(
    expandable: Run, configure: Configure
) -> None:
    run = expandable
    run.until(run.trains)
    configure(checkpoint={"size": "4Ti", "storageClassName": "lustre"})
    resume(run)
    assert size(run.api.claims[CHECKPOINTS]["spec"]) == "2Ti"
    run.edit(checkpoint={"volume": {"size": "4Ti"}})
    resume(run)
    assert size(run.api.claims[CHECKPOINTS]["spec"]) == "4Ti"


def test_a_claim_that_was_expanded_by_hand_is_not_changed_while_the_recipe_is_not_edited(
    expandable: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = expandable
    run.edit(checkpoint={"volume": {"size": "1Ti"}})
    run.until(run.trains)
    run.api.claims[CHECKPOINTS]["spec"]["resources"] = {"requests": {"storage": "8Ti"}}
    refuse_changes(run.api, monkeypatch)
    resume(run)
    assert size(run.api.claims[CHECKPOINTS]["spec"]) == "8Ti"
