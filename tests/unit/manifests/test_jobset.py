"""The JobSet of a run: one Job for each pod, its state, its pods and the Events about them."""

from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.platform_validation import parse_platform
from megatron_operator.manifests import jobset, object_name
from megatron_operator.manifests.job_backend import JobPhase
from megatron_operator.manifests.job_backends import BACKENDS, backend_of, backend_of_kind, backend_of_pod
from megatron_operator.manifests.job_backends import stable_name as stable_name_of

GANG = ("MASTER_ADDR", "MASTER_PORT", "PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE")


def job(run: Any, recipe: str = "llama3-8b-64-gpus", **metadata: str) -> dict[str, Any]:
    each = run(recipe)
    each.metadata |= metadata
    each.resolved = each.resolved.model_copy(update={"job_backend": "jobset"})
    return dict(each.build().job)


def pod(place: str = "worker", index: str = "2", **metadata: Any) -> dict[str, Any]:
    labels = {
        "jobset.sigs.k8s.io/jobset-name": "run",
        "jobset.sigs.k8s.io/jobset-uid": "j",
        "jobset.sigs.k8s.io/replicatedjob-name": place,
        "jobset.sigs.k8s.io/job-index": index,
    }
    name = f"run-{place}-{index}-0-abcde"
    return {"metadata": {"name": name, "namespace": "default", "labels": labels} | metadata}


def test_each_pod_has_a_job_of_its_own_and_no_policy_restarts_the_gang(run: Any) -> None:
    manifest = job(run)
    groups = {each["name"]: each for each in manifest["spec"]["replicatedJobs"]}
    assert {name: each["replicas"] for name, each in groups.items()} == {"master": 1, "worker": 7}
    assert "failurePolicy" not in manifest["spec"]
    for each in groups.values():
        spec = each["template"]["spec"]
        assert (spec["parallelism"], spec["completions"], spec["podReplacementPolicy"]) == (1, 1, "Failed")
        (rule,) = spec["podFailurePolicy"]["rules"]
        assert rule["action"] == "FailJob"
        assert rule["onExitCodes"]["values"] == list(range(1, 128))
        assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_jobs_and_pods_have_the_recipes_label(run: Any) -> None:
    manifest = job(run)
    recipe = manifest["metadata"]["labels"]["megatron.training/recipe"]
    for each in manifest["spec"]["replicatedJobs"]:
        assert each["template"]["metadata"]["labels"]["megatron.training/recipe"] == recipe
        pods = each["template"]["spec"]["template"]
        assert pods["metadata"]["labels"]["megatron.training/recipe"] == recipe
        assert pods["spec"]["automountServiceAccountToken"] is False


def test_a_run_is_complete_when_its_master_is(run: Any) -> None:
    policy = job(run)["spec"]["successPolicy"]
    assert policy == {"operator": "All", "targetReplicatedJobs": ["master"]}


def test_pods_get_what_the_training_operator_gives_those_of_a_pytorchjob(run: Any) -> None:
    manifest = job(run)
    name = manifest["metadata"]["name"]
    for template in jobset.templates(manifest):
        variables = {each["name"]: each for each in template["spec"]["containers"][0]["env"]}
        found = {key: variables[key].get("value") for key in GANG}
        assert found == {
            "MASTER_ADDR": f"{name}-master-0-0.{name}",
            "MASTER_PORT": "23456",
            "PET_NNODES": "8",
            "PET_NODE_RANK": None,
            "PET_NPROC_PER_NODE": "8",
        }
        path = variables["PET_NODE_RANK"]["valueFrom"]["fieldRef"]["fieldPath"]
        assert path == "metadata.labels['jobset.sigs.k8s.io/job-global-index']"
    assert (jobset.size(manifest), jobset.per_node(manifest)) == (8, 8)


def test_a_run_of_one_node_has_no_workers(run: Any) -> None:
    assert [each["name"] for each in job(run, "one-gpu")["spec"]["replicatedJobs"]] == ["master"]


def test_with_a_queue_the_job_is_created_suspended(run: Any) -> None:
    manifest = job(run, "llama3.1-8b-queued")
    assert manifest["spec"]["suspend"] is True
    assert manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
    assert job(run)["spec"]["suspend"] is False


def test_the_longest_name_leaves_room_for_the_names_of_pods(run: Any) -> None:
    name = job(run, name="a" * 43)["metadata"]["name"]
    assert len(f"{name}-worker-9999-0-abcde") == 63


def test_a_longer_name_is_refused_with_the_limit(run: Any) -> None:
    with pytest.raises(InvalidRecipeError) as refused:
        job(run, name="a" * 44)
    (error,) = refused.value.errors
    assert (error.field, error.fix) == ("metadata.name", "use a name of at most 43 characters")
    assert error.message == "has 44 characters, but names of a JobSet's pods have room for 43"


@pytest.mark.parametrize(
    ("name", "longest"),
    [("a.", 37), ("8-", 35), ("8.", 35)],
    ids=["with a dot", "begins with a digit", "both"],
)
def test_a_name_that_its_job_cannot_have_is_refused_with_the_one_that_the_job_would_have(
    run: Any, name: str, longest: int
) -> None:
    assert len(job(run, name=name.ljust(longest, "a"))["metadata"]["name"]) == 43
    longer = name.ljust(longest + 1, "a")
    with pytest.raises(InvalidRecipeError) as refused:
        job(run, name=longer)
    (error,) = refused.value.errors
    assert error.message == (
        f"becomes {object_name(longer)} of 44 characters, but names of a JobSet's pods have room for 43"
    )
    assert error.fix == (
        "use a name of at most 43 characters of a-z, 0-9 and - that begins with a letter, or a shorter one"
    )


def test_the_kind_of_job_is_part_of_its_hash(run: Any) -> None:
    annotation = "megatron.training/hash"
    hashes = {
        manifest["metadata"]["annotations"][annotation]
        for manifest in (job(run), run("llama3-8b-64-gpus").build().job)
    }
    assert len(hashes) == 2


@pytest.mark.parametrize(
    ("suspend", "conditions", "phase"),
    [
        (False, [], JobPhase.ACTIVE),
        (False, [("Suspended", "False")], JobPhase.ACTIVE),
        (True, [], JobPhase.SUSPENDED),
        (False, [("Completed", "True")], JobPhase.SUCCEEDED),
        (False, [("Failed", "True")], JobPhase.FAILED),
        (True, [("Failed", "True")], JobPhase.FAILED),
    ],
)
def test_the_state_follows_from_conditions_and_suspend(
    suspend: bool, conditions: list[tuple[str, str]], phase: JobPhase
) -> None:
    listed = [{"type": kind, "status": status, "message": "m"} for kind, status in conditions]
    found = jobset.state({"spec": {"suspend": suspend}, "status": {"conditions": listed}})
    assert found.phase is phase


def test_a_job_that_was_just_created_has_no_status_and_is_active() -> None:
    assert jobset.state({"spec": {}}).phase is JobPhase.ACTIVE


@pytest.mark.parametrize(
    ("place", "index", "rank", "name"),
    [
        ("master", "0", 0, "run-master-0"),
        ("worker", "0", 1, "run-worker-0"),
        ("worker", "12", 13, "run-worker-12"),
        ("worker", "twelve", 1, "run-worker-0"),
    ],
)
def test_a_place_in_the_gang_follows_from_labels(place: str, index: str, rank: int, name: str) -> None:
    each = pod(place, index)
    assert (jobset.node_rank(each), jobset.stable_name(each)) == (rank, name)
    assert backend_of_pod(each) is BACKENDS["jobset"]
    assert stable_name_of(each) == name


def test_a_pod_belongs_to_the_job_with_its_uid_alone() -> None:
    assert jobset.owns({"metadata": {"uid": "j"}}, pod())
    assert not jobset.owns({"metadata": {"uid": "earlier"}}, pod())


def test_a_pod_is_replaced_with_its_job() -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "run-worker-2", "uid": "b"}
    found = jobset.replaced_with(pod(ownerReferences=[owner]))
    assert found == {"metadata": {"namespace": "default", "name": "run-worker-2", "uid": "b"}}
    assert jobset.replaced_with(pod()) is None


def test_a_pod_that_names_a_job_of_somebody_else_as_its_owner_has_that_left_alone() -> None:
    foreign = {"apiVersion": "batch/v1", "kind": "Job", "name": "billing", "uid": "b"}
    assert jobset.replaced_with(pod(ownerReferences=[foreign])) is None


@pytest.mark.parametrize(
    ("kind", "name", "time", "own"),
    [
        ("Job", "run-worker-2", "2026-01-02T00:00:00Z", True),
        ("Job", "run-master-0", "2026-01-02T00:00:00Z", True),
        ("Job", "run-worker-2", "2025-12-31T00:00:00Z", False),
        ("Job", "run-2-worker-2", "2026-01-02T00:00:00Z", False),
        ("Job", "run-prepare", "2026-01-02T00:00:00Z", False),
        ("JobSet", "run", "2026-01-02T00:00:00Z", True),
        ("JobSet", "run", "2025-12-31T00:00:00Z", False),
        ("JobSet", "run-2", "2026-01-02T00:00:00Z", False),
    ],
)
def test_only_events_about_itself_and_its_own_jobs_count(kind: str, name: str, time: str, own: bool) -> None:
    made = {"metadata": {"name": "run", "creationTimestamp": "2026-01-01T00:00:00Z"}}
    event = {"involvedObject": {"kind": kind, "name": name}, "lastTimestamp": time}
    assert jobset.is_event_of(made, event) is own


def test_the_backend_is_read_from_the_object(run: Any) -> None:
    assert backend_of(job(run)) is BACKENDS["jobset"]
    assert backend_of_kind("JobSet") is BACKENDS["jobset"]
    assert backend_of_kind(None) is backend_of_kind("Unknown") is BACKENDS["pytorchjob"]


def test_gang_scheduling_by_pod_groups_needs_pytorchjobs() -> None:
    with pytest.raises(InvalidRecipeError) as refused:
        parse_platform({"jobBackend": "jobset", "gangScheduling": {"scheduler": "gangs"}}, "platform")
    (error,) = refused.value.errors
    assert error.field == "platform.gangScheduling"
    assert error.message == "needs PodGroups, which nobody creates for jobBackend jobset"


def test_an_unknown_kind_of_job_is_refused() -> None:
    with pytest.raises(InvalidRecipeError, match=r"platform\.jobBackend"):
        parse_platform({"jobBackend": "deployment"}, "platform")
    assert PlatformConfig().job_backend == "pytorchjob"
