"""Objects of a run: names, owners, and the hash that shows a changed spec."""

import re
from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.lifecycle.object_metadata import content_hash
from megatron_operator.manifests import object_name, pytorchjob
from megatron_operator.manifests.job_backends import BACKENDS
from megatron_operator.manifests.kueue import PREFERRED_TOPOLOGY
from megatron_operator.manifests.metadata import Owner

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


@pytest.mark.parametrize(
    "recipe",
    ["a", "llama3-8b", "llama3.1-8b", "3b", "x" * 63, "a." * 31 + "b", "-".join("abc" * 7) + "." * 9],
)
def test_every_pod_of_any_recipe_has_a_valid_name(recipe: str) -> None:
    for rank in (0, 1, 9999):
        assert DNS_1035.fullmatch(pytorchjob.pod_name(object_name(recipe), rank))


def test_different_recipes_have_different_object_names() -> None:
    names = ["llama3.1-8b", "llama3-1-8b", "llama3_1-8b", "x" * 60, "x" * 61]
    assert len({object_name(name) for name in names}) == len(names)


def test_a_name_too_long_for_a_label_is_an_error() -> None:
    with pytest.raises(
        InvalidRecipeError,
        match=r"metadata.name: has 64 characters, but a label value has at most 63; use a name",
    ):
        Owner("x" * 64, "default", "uid")


def test_requiring_a_checkpoint_does_not_change_the_jobs_hash(run: Any) -> None:
    recipe = run("tiny-gpt")
    first, again = recipe.build(), recipe.build(require_checkpoint=True)
    assert first.job != again.job
    assert first.job_hash == again.job_hash


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"recovery": {"maxRestarts": 3}}, True),
        ({"suspend": True}, True),
        ({"training": {"trainIters": 300}}, False),
        ({"image": "registry.example/megatron-trainer:1.1"}, False),
        ({"env": {"NCCL_DEBUG": "INFO"}}, False),
    ],
    ids=["budget", "suspend", "length", "image", "environment"],
)
def test_only_changes_that_affect_pods_change_the_jobs_hash(
    run: Any, change: dict[str, Any], same: bool
) -> None:
    before = run("tiny-gpt").build().job_hash
    after = run("tiny-gpt", lambda spec: spec.update(change)).build().job_hash
    assert (before == after) is same


def test_only_a_retained_checkpoint_claim_has_no_owner(run: Any) -> None:
    kept = {claim["metadata"]["name"]: claim for claim in run("tiny-gpt").build().claims}
    assert "ownerReferences" not in kept["tiny-gpt-checkpoints"]["metadata"]
    assert kept["tiny-gpt-data"]["metadata"]["ownerReferences"][0]["kind"] == "MegatronRecipe"
    gone = run("llama3.1-8b-queued").build().claims[0]
    assert gone["metadata"]["ownerReferences"][0]["name"] == "llama3.1-8b-queued"


def test_a_queued_job_is_created_suspended(run: Any) -> None:
    job = run("llama3.1-8b-queued").build().job
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert job["spec"]["runPolicy"] == {"cleanPodPolicy": "Running", "suspend": True}


@pytest.mark.parametrize("aware", [True, False])
def test_pods_of_a_queue_prefer_a_topology_only_where_the_platform_has_topology_aware_queues(
    run: Any, *, aware: bool
) -> None:
    queued = run("llama3.1-8b-queued")
    queued.resolved = queued.resolved.model_copy(update={"topology_aware_queues": aware})
    for template in pytorchjob.templates(queued.build().job):
        topology = template["metadata"].get("annotations", {}).get(PREFERRED_TOPOLOGY)
        assert topology == ("cloud.provider.com/topology-rack" if aware else None)


@pytest.mark.parametrize(
    ("recipe", "job"),
    [
        ("tiny-gpt", "prepare_job"),
        ("qwen3-8b-continued", "import_job"),
        ("qwen3-8b-continued", "export_job"),
    ],
)
def test_jobs_beside_a_queued_run_are_queued_too_and_are_not_repeated_in_another_queue(
    run: Any, recipe: str, job: str
) -> None:
    def queued(spec: dict[str, Any]) -> None:
        spec["scheduling"] = {"queue": "research"}

    without, made = (getattr(run(recipe, change).build(), job) for change in (None, queued))
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert made["spec"]["suspend"] is True
    assert "suspend" not in without["spec"]
    assert content_hash(made) == content_hash(without)


@pytest.mark.parametrize("backend", ["pytorchjob", "jobset", "trainjob"])
def test_kueue_places_all_pods_of_a_queued_run_in_one_domain_that_is_required(run: Any, backend: str) -> None:
    def require(spec: dict[str, Any]) -> None:
        spec["scheduling"]["requiredTopology"] = "cloud.provider.com/topology-rack"

    each = run("llama3.1-8b-queued", require)
    changes = {"job_backend": backend, "topology_aware_queues": True}
    each.resolved = each.resolved.model_copy(update=changes)
    master, workers = BACKENDS[backend].templates(each.build().job)
    for template in (master, workers):
        of_kueue = {k: v for k, v in template["metadata"]["annotations"].items() if k.startswith("kueue.")}
        assert of_kueue == {
            "kueue.x-k8s.io/podset-required-topology": "cloud.provider.com/topology-rack",
            "kueue.x-k8s.io/podset-group-name": "gang",
        }
        affinity = template["spec"]["affinity"]["podAffinity"]
        [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "cloud.provider.com/topology-rack"


def test_an_existing_claim_is_expected_and_not_created(run: Any) -> None:
    built = run("llama3-8b-64-gpus").build()
    assert built.expected_claims == ("corpus",)
    assert [claim["metadata"]["name"] for claim in built.claims] == ["llama3-8b-checkpoints"]


def test_an_empty_data_volume_without_preparation_is_an_error(run: Any) -> None:
    def empty(spec: dict[str, Any]) -> None:
        spec["data"]["volume"] = {"size": "1Ti"}

    with pytest.raises(InvalidRecipeError, match=r"spec.data.volume: requests a new, empty volume"):
        run("llama3-8b-64-gpus", empty).build()


def test_a_missing_image_is_an_error(run: Any) -> None:
    recipe = run("one-gpu")
    recipe.resolved = recipe.resolved.model_copy(update={"image": None})
    with pytest.raises(
        InvalidRecipeError, match=r"spec.image: is set neither by the recipe nor by the platform"
    ):
        recipe.build()


@pytest.mark.parametrize(
    ("status", "suspend", "expected"),
    [
        ({}, False, "Active"),
        ({}, True, "Suspended"),
        ({"conditions": [{"type": "Running", "status": "True"}]}, False, "Active"),
        ({"conditions": [{"type": "Succeeded", "status": "True"}]}, True, "Succeeded"),
        ({"conditions": [{"type": "Failed", "status": "True", "message": "why"}]}, False, "Failed"),
        ({"conditions": [{"type": "Failed", "status": "False"}]}, False, "Active"),
    ],
)
def test_the_state_of_a_job_comes_from_its_final_condition(
    status: dict[str, Any], suspend: bool, expected: str
) -> None:
    job = {"spec": {"runPolicy": {"suspend": suspend}}, "status": status}
    assert pytorchjob.state(job).phase == expected
