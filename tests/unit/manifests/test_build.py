"""Objects, names, owners and the hash that tells whether a job is still the one that is wanted."""

import re
from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.manifests import object_name, pytorchjob
from megatron_operator.manifests.metadata import Owner

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


@pytest.mark.parametrize(
    "recipe",
    ["a", "llama3-8b", "llama3.1-8b", "3b", "x" * 63, "a." * 31 + "b", "-".join("abc" * 7) + "." * 9],
)
def test_every_pod_of_any_recipe_has_a_valid_name(recipe: str) -> None:
    for rank in (0, 1, 9999):
        assert DNS_1035.fullmatch(pytorchjob.pod_name(object_name(recipe), rank))


def test_recipes_that_differ_have_objects_that_differ() -> None:
    names = ["llama3.1-8b", "llama3-1-8b", "llama3_1-8b", "x" * 60, "x" * 61]
    assert len({object_name(name) for name in names}) == len(names)


def test_a_name_too_long_for_a_label_is_refused() -> None:
    with pytest.raises(
        InvalidRecipeError, match=r"metadata.name: has 64 characters, and labels of pods hold 63; use a name"
    ):
        Owner("x" * 64, "default", "uid")


def test_starting_from_a_checkpoint_makes_no_other_job(run: Any) -> None:
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
def test_only_what_pods_see_makes_another_job(run: Any, change: dict[str, Any], same: bool) -> None:
    before = run("tiny-gpt").build().job_hash
    after = run("tiny-gpt", lambda spec: spec.update(change)).build().job_hash
    assert (before == after) is same


def test_a_retained_checkpoint_claim_has_no_owner_and_others_have(run: Any) -> None:
    kept = {claim["metadata"]["name"]: claim for claim in run("tiny-gpt").build().claims}
    assert "ownerReferences" not in kept["tiny-gpt-checkpoints"]["metadata"]
    assert kept["tiny-gpt-data"]["metadata"]["ownerReferences"][0]["kind"] == "MegatronRecipe"
    gone = run("llama3.1-8b-queued").build().claims[0]
    assert gone["metadata"]["ownerReferences"][0]["name"] == "llama3.1-8b-queued"


def test_a_queued_job_begins_suspended_with_its_topology(run: Any) -> None:
    job = run("llama3.1-8b-queued").build().job
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert job["spec"]["runPolicy"] == {"cleanPodPolicy": "Running", "suspend": True}
    for template in pytorchjob.templates(job):
        topology = template["metadata"]["annotations"]["kueue.x-k8s.io/podset-preferred-topology"]
        assert topology == "cloud.provider.com/topology-rack"


def test_a_claim_of_the_users_is_expected_and_not_made(run: Any) -> None:
    built = run("llama3-8b-64-gpus").build()
    assert built.expected_claims == ("corpus",)
    assert [claim["metadata"]["name"] for claim in built.claims] == ["llama3-8b-checkpoints"]


def test_an_empty_data_volume_without_preparation_is_refused(run: Any) -> None:
    def empty(spec: dict[str, Any]) -> None:
        spec["data"]["volume"] = {"size": "1Ti"}

    with pytest.raises(InvalidRecipeError, match=r"spec.data.volume: asks for a new, empty volume"):
        run("llama3-8b-64-gpus", empty).build()


def test_without_an_image_nothing_is_made(run: Any) -> None:
    recipe = run("one-gpu")
    recipe.resolved = recipe.resolved.model_copy(update={"image": None})
    with pytest.raises(
        InvalidRecipeError, match=r"spec.image: is named neither by the recipe nor by the platform"
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
def test_a_jobs_state_is_its_own_final_word(status: dict[str, Any], suspend: bool, expected: str) -> None:
    job = {"spec": {"runPolicy": {"suspend": suspend}}, "status": status}
    assert pytorchjob.state(job).phase == expected
