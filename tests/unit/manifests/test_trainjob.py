"""The TrainJob of a run and its TrainingRuntime: what Trainer must not change, its state and its pods."""

from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.platform_validation import parse_platform
from megatron_operator.manifests import jobset, node_avoidance, trainjob
from megatron_operator.manifests.job_backend import JobPhase
from megatron_operator.manifests.job_backends import BACKENDS, backend_of, backend_of_kind, backend_of_pod

ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"
HASH = "megatron.training/hash"


def built(run: Any, recipe: str = "llama3-8b-64-gpus", backend: str = "trainjob", **metadata: str) -> Any:
    each = run(recipe)
    each.metadata |= metadata
    each.resolved = each.resolved.model_copy(update={"job_backend": backend})
    return each.build()


def job(run: Any, recipe: str = "llama3-8b-64-gpus", **metadata: str) -> dict[str, Any]:
    return dict(built(run, recipe, **metadata).job)


def pod(name: str = "run", created: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
    labels = {"jobset.sigs.k8s.io/jobset-name": name, "jobset.sigs.k8s.io/jobset-uid": "j"}
    return {"metadata": {"name": f"{name}-worker-0-0-abcde", "labels": labels, "creationTimestamp": created}}


def test_the_api_server_gets_the_runtime_before_the_trainjob_that_refers_to_it(run: Any) -> None:
    manifests = built(run)
    runtime, made = trainjob.objects(manifests.job)
    assert (runtime["kind"], made["kind"]) == ("TrainingRuntime", "TrainJob")
    assert "trainingRuntime" not in made, "no field of the API"
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime"}
    assert made["spec"]["runtimeRef"] == reference | {"name": runtime["metadata"]["name"]}
    kinds = [each["kind"] for each in manifests.all()]
    assert kinds[kinds.index("TrainingRuntime") + 1] == "TrainJob"


def test_no_plugin_of_trainer_changes_the_pods(run: Any) -> None:
    """Without an ML policy, and without the label by which Trainer finds its own group of Jobs."""
    runtime = job(run)["trainingRuntime"]
    assert runtime["spec"].keys() == {"template"}
    for group in runtime["spec"]["template"]["spec"]["replicatedJobs"]:
        assert ANCESTOR not in group["template"]["metadata"]["labels"]


def test_the_pods_are_those_of_the_backend_jobset(run: Any) -> None:
    plain = built(run, backend="jobset").job
    assert trainjob.templates(job(run)) == jobset.templates(plain)


def test_a_runtime_alone_has_the_templates_too(run: Any) -> None:
    made = job(run)
    assert trainjob.templates(made["trainingRuntime"]) == trainjob.templates(made)


def test_the_jobset_of_trainer_has_the_recipes_label(run: Any) -> None:
    made = job(run)
    recipe = made["metadata"]["labels"]["megatron.training/recipe"]
    template = made["trainingRuntime"]["spec"]["template"]
    assert template["metadata"]["labels"]["megatron.training/recipe"] == recipe
    assert "suspend" not in template["spec"], "that of the TrainJob counts"


def test_the_size_of_the_gang_is_read_from_the_trainjob_alone(run: Any) -> None:
    _, made = trainjob.objects(job(run))
    assert (trainjob.size(made), trainjob.per_node(made)) == (8, 8)


def test_with_a_queue_the_job_is_created_suspended(run: Any) -> None:
    queued = job(run, "llama3.1-8b-queued")
    assert queued["spec"]["suspend"] is True
    assert queued["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
    assert job(run)["spec"]["suspend"] is False


def test_the_runtimes_hash_covers_the_nodes_that_pods_avoid(run: Any) -> None:
    made = job(run)
    elsewhere = node_avoidance.avoiding(made, ["node-1"])
    assert node_avoidance.avoided(elsewhere) == {"node-1"}
    hashes = [
        [each["metadata"]["annotations"][HASH] for each in trainjob.objects(each)]
        for each in (made, elsewhere)
    ]
    assert hashes[0][0] != hashes[1][0], "the runtime is another one"
    assert hashes[0][1] == hashes[1][1], "the job is not outdated by it"


def test_the_kind_of_job_is_part_of_its_hash(run: Any) -> None:
    hashes = {built(run, backend=backend).job_hash for backend in BACKENDS}
    assert len(hashes) == len(BACKENDS)


def test_a_name_with_no_room_for_those_of_pods_is_refused(run: Any) -> None:
    job(run, name="a" * 43)
    with pytest.raises(InvalidRecipeError) as refused:
        job(run, name="a" * 44)
    (error,) = refused.value.errors
    assert (error.field, error.fix) == ("metadata.name", "use a name of at most 43 characters")


@pytest.mark.parametrize(
    ("suspend", "conditions", "phase"),
    [
        (False, [], JobPhase.ACTIVE),
        (False, [("Suspended", "False")], JobPhase.ACTIVE),
        (True, [("Suspended", "True")], JobPhase.SUSPENDED),
        (False, [("Complete", "True")], JobPhase.SUCCEEDED),
        (False, [("Failed", "True")], JobPhase.FAILED),
        (True, [("Failed", "True")], JobPhase.FAILED),
    ],
)
def test_the_state_follows_from_conditions_and_suspend(
    suspend: bool, conditions: list[tuple[str, str]], phase: JobPhase
) -> None:
    listed = [{"type": kind, "status": status, "message": "m"} for kind, status in conditions]
    found = trainjob.state({"spec": {"suspend": suspend}, "status": {"conditions": listed}})
    assert found.phase is phase


@pytest.mark.parametrize(
    ("name", "created", "own"),
    [
        ("run", "2026-01-01T00:00:00Z", True),
        ("run", "2026-01-02T00:00:00Z", True),
        ("run", "2025-12-31T23:59:59Z", False),
        ("other", "2026-01-02T00:00:00Z", False),
    ],
)
def test_a_pod_of_the_jobs_name_that_is_not_older_belongs_to_it(name: str, created: str, own: bool) -> None:
    made = {"metadata": {"name": "run", "creationTimestamp": "2026-01-01T00:00:00Z", "uid": "t"}}
    assert trainjob.owns(made, pod(name, created)) is own
    assert trainjob.job_name(pod(name)) == name
    assert backend_of_pod(pod()) is BACKENDS["jobset"], "which replaces it likewise"


@pytest.mark.parametrize(
    ("kind", "name", "time", "own"),
    [
        ("TrainJob", "run", "2026-01-02T00:00:00Z", True),
        ("JobSet", "run", "2026-01-02T00:00:00Z", True),
        ("Job", "run-worker-2", "2026-01-02T00:00:00Z", True),
        ("TrainJob", "run", "2025-12-31T00:00:00Z", False),
        ("TrainJob", "run-2", "2026-01-02T00:00:00Z", False),
        ("PersistentVolumeClaim", "run", "2026-01-02T00:00:00Z", False),
    ],
)
def test_events_about_the_trainjob_its_jobset_and_their_jobs_count(
    kind: str, name: str, time: str, own: bool
) -> None:
    made = {"metadata": {"name": "run", "creationTimestamp": "2026-01-01T00:00:00Z"}}
    event = {"involvedObject": {"kind": kind, "name": name}, "lastTimestamp": time}
    assert trainjob.is_event_of(made, event) is own


def test_the_backend_is_read_from_the_object(run: Any) -> None:
    assert backend_of(job(run)) is backend_of_kind("TrainJob") is BACKENDS["trainjob"]
    assert backend_of({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"}) is BACKENDS["pytorchjob"]


def test_gang_scheduling_by_pod_groups_needs_pytorchjobs() -> None:
    with pytest.raises(InvalidRecipeError) as refused:
        parse_platform({"jobBackend": "trainjob", "gangScheduling": {"scheduler": "gangs"}}, "platform")
    (error,) = refused.value.errors
    assert error.field == "platform.gangScheduling"
    assert error.message == "needs PodGroups, which nobody creates for jobBackend trainjob"
