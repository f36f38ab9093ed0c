"""The PriorityClass of pods with which a run recovers."""

from copy import deepcopy
from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.api.labels import ANNOTATION_HASH, ANNOTATION_RECOVERY_PRIORITY
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.manifests import build, recovery_priority
from megatron_operator.manifests.job_backends import backend_of
from megatron_operator.planner import admit

CLASS = "megatron-recovery"


def job(platform: dict[str, Any], **scheduling: str) -> dict[str, Any]:
    """The job of a run of two pods."""
    config = PlatformConfig.model_validate({"accelerators": {"h100-sxm": {}}, "image": "trainer"} | platform)
    spec = {
        "recipe": "llama3-8b",
        "accelerator": {"count": 16},
        "data": {"mockData": True},
        "scheduling": scheduling,
    }
    run = admit("run", MegatronRecipeSpec.model_validate(spec), config, catalog.load())
    return build(run, "uid").job


def classes(made: dict[str, Any]) -> list[str | None]:
    return [each["spec"].get("priorityClassName") for each in backend_of(made).templates(made)]


@pytest.mark.parametrize("backend", ["pytorchjob", "jobset", "trainjob"])
def test_pods_of_a_new_run_do_not_have_the_class_and_those_of_a_run_that_goes_on_do(backend: str) -> None:
    new = job({"recoveryPriorityClassName": CLASS, "jobBackend": backend})
    before = deepcopy(new)
    recovering = recovery_priority.recovering(new)
    assert set(classes(new)) == {None}
    assert set(classes(recovering)) == {CLASS}
    assert new == before


def test_the_patch_gives_the_class_to_all_templates_and_changes_nothing_else() -> None:
    made = job({"recoveryPriorityClassName": CLASS})
    assert recovery_priority.missing_class(made) == CLASS
    change = {"template": {"spec": {"priorityClassName": CLASS}}}
    assert recovery_priority.merge_patch(made, CLASS) == {
        "spec": {"pytorchReplicaSpecs": {"Master": change, "Worker": change}}
    }
    assert recovery_priority.missing_class(recovery_priority.recovering(made)) is None


@pytest.mark.parametrize(
    ("platform", "scheduling"),
    [
        ({}, {}),
        ({"recoveryPriorityClassName": CLASS}, {"priorityClassName": "research"}),
        ({"recoveryPriorityClassName": CLASS}, {"queue": "research"}),
        ({"recoveryPriorityClassName": CLASS, "queue": "research"}, {}),
    ],
    ids=["no class", "priority of the recipe", "queue of the recipe", "queue of the platform"],
)
def test_runs_with_another_priority_keep_it(platform: dict[str, Any], scheduling: dict[str, str]) -> None:
    made = job(platform, **scheduling)
    assert recovery_priority.missing_class(made) is None
    assert recovery_priority.recovering(made) == made


def test_another_class_of_the_platform_does_not_replace_a_job() -> None:
    plain, other = job({}), job({"recoveryPriorityClassName": CLASS})
    annotations = [each["metadata"]["annotations"] for each in (plain, other)]
    assert annotations[0][ANNOTATION_HASH] == annotations[1][ANNOTATION_HASH]
    assert annotations[1] == annotations[0] | {ANNOTATION_RECOVERY_PRIORITY: CLASS}
