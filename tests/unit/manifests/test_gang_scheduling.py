"""What a job has for gang scheduling without Kueue, and what the platform cannot combine with it."""

from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.platform import GangScheduling
from megatron_operator.api.platform_validation import parse_platform
from megatron_operator.manifests import pytorchjob

COSCHEDULING = GangScheduling(scheduler="gangs", schedule_timeout_seconds=60)
VOLCANO = GangScheduling(scheduler="volcano", queue="research")
KUBERNETES = GangScheduling(scheduler="kubernetes")


def job(run: Any, recipe: str, gangs: GangScheduling | None, **change: Any) -> dict[str, Any]:
    each = run(recipe, lambda spec: spec.update(change))
    each.resolved = each.resolved.model_copy(update={"gang_scheduling": gangs})
    return dict(each.build().job)


def policy(manifest: dict[str, Any]) -> Any:
    return manifest["spec"]["runPolicy"].get("schedulingPolicy")


def test_a_job_has_no_policy_unless_the_platform_wants_one(run: Any) -> None:
    manifest = job(run, "llama3-8b-64-gpus", None)
    assert policy(manifest) is None
    for pods in pytorchjob.templates(manifest):
        assert "schedulerName" not in pods["spec"]
        assert "scheduling.x-k8s.io/pod-group" not in pods["metadata"]["labels"]


def test_all_pods_of_a_job_form_one_group_of_the_platforms_scheduler(run: Any) -> None:
    manifest = job(run, "llama3-8b-64-gpus", COSCHEDULING, scheduling={"priorityClassName": "high"})
    assert policy(manifest) == {"minAvailable": 8, "scheduleTimeoutSeconds": 60}
    assert "suspend" not in manifest["spec"]["runPolicy"]
    master, worker = pytorchjob.templates(manifest)
    for pods in (master, worker):
        assert pods["spec"]["schedulerName"] == "gangs"
        assert pods["spec"]["priorityClassName"] == "high"
        assert pods["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == manifest["metadata"]["name"]


def test_the_group_of_a_smaller_run_is_smaller(run: Any) -> None:
    """An elastic run that shrinks gets another job: its group never waits for pods that it does not have."""
    manifest = job(run, "llama3-8b-64-gpus", COSCHEDULING, accelerator={"type": "h100", "count": 32})
    replicas = manifest["spec"]["pytorchReplicaSpecs"]
    assert sum(each["replicas"] for each in replicas.values()) == policy(manifest)["minAvailable"] == 4


def test_volcano_gets_queue_and_priority_and_marks_pods_by_annotation(run: Any) -> None:
    manifest = job(run, "llama3-8b-64-gpus", VOLCANO, scheduling={"priorityClassName": "high"})
    assert policy(manifest) == {"minAvailable": 8, "queue": "research", "priorityClass": "high"}
    for pods in pytorchjob.templates(manifest):
        assert pods["spec"]["schedulerName"] == "volcano"
        assert pods["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == manifest["metadata"]["name"]
        assert "scheduling.x-k8s.io/pod-group" not in pods["metadata"]["labels"]


def test_pods_of_kubernetes_gangs_wait_until_they_are_assigned_to_the_pod_group_of_their_run(
    run: Any,
) -> None:
    each = run("llama3-8b-64-gpus")
    each.resolved = each.resolved.model_copy(update={"gang_scheduling": KUBERNETES})
    manifests = each.build()
    assert policy(manifests.job) is None, "the training-operator creates no PodGroup"
    group = manifests.pod_group
    assert group["apiVersion"] == "scheduling.k8s.io/v1alpha2"
    assert group["spec"] == {"schedulingPolicy": {"gang": {"minCount": 8}}}
    for pods in pytorchjob.templates(manifests.job):
        assert pods["metadata"]["labels"]["megatron.training/pod-group"] == group["metadata"]["name"]
        assert pods["spec"]["schedulingGates"] == [{"name": "megatron.training/pod-group"}]
        assert "schedulerName" not in pods["spec"]
    assert manifests.all().index(group) < manifests.all().index(manifests.job)


def test_the_pod_group_of_kubernetes_has_the_required_level(run: Any) -> None:
    rack = "cloud.provider.com/topology-rack"

    def require(spec: dict[str, Any]) -> None:
        spec["scheduling"] = {"requiredTopology": rack}

    each = run("llama3-8b-64-gpus", require)
    each.resolved = each.resolved.model_copy(update={"gang_scheduling": KUBERNETES})
    assert each.build().pod_group["spec"]["schedulingConstraints"] == {"topology": [{"key": rack}]}


def test_kubernetes_gangs_need_no_certain_kind_of_job_or_scheduler() -> None:
    profile = {"podTemplate": {"schedulerName": "other"}}
    for backend in ("pytorchjob", "jobset", "trainjob"):
        parse_platform(
            {
                "accelerators": {"h100": profile},
                "jobBackend": backend,
                "gangScheduling": {"scheduler": "kubernetes"},
            },
            "platform.yaml",
        )


@pytest.mark.parametrize(
    ("gangs", "rest", "field", "message"),
    [
        (
            {"scheduler": "kubernetes", "scheduleTimeoutSeconds": 60},
            {},
            "gangScheduling.scheduleTimeoutSeconds",
            "60 has no effect on kubernetes",
        ),
        (
            {"scheduler": "volcano"},
            {"jobBackend": "jobset"},
            "gangScheduling",
            "needs PodGroups, which nobody creates for jobBackend jobset",
        ),
        ({"scheduler": "gangs"}, {"queue": "research"}, "queue", "'research' is a queue of Kueue"),
        ({"scheduler": "gangs"}, {"topologyAwareQueues": True}, "topologyAwareQueues", "queues of Kueue"),
        (
            {"scheduler": "gangs"},
            {"workloadPriorityClassName": "high"},
            "workloadPriorityClassName",
            "'high' is a priority in a queue of Kueue",
        ),
        (
            {"scheduler": "volcano", "scheduleTimeoutSeconds": 60},
            {},
            "gangScheduling.scheduleTimeoutSeconds",
            "60 has no effect on volcano",
        ),
        ({"scheduler": "gangs", "queue": "a"}, {}, "gangScheduling.queue", "'a': 'gangs' has no queues"),
        ({"scheduler": "Gangs!"}, {}, "gangScheduling.scheduler", "invalid name 'Gangs!'"),
        (
            {"scheduler": "gangs"},
            {"accelerators": {"h100": {"podTemplate": {"schedulerName": "other"}}}},
            "accelerators.h100.podTemplate.schedulerName",
            "'other' would not see the PodGroups of gangScheduling.scheduler gangs",
        ),
    ],
)
def test_a_contradiction_of_the_platform_is_refused_with_field_value_and_fix(
    gangs: Any, rest: Any, field: str, message: str
) -> None:
    with pytest.raises(InvalidRecipeError) as caught:
        parse_platform(rest | {"gangScheduling": gangs}, "platform.yaml")
    [error] = caught.value.errors
    assert error.field == f"platform.yaml.{field}"
    assert message in error.message
    assert error.fix


def test_the_same_scheduler_may_be_named_twice() -> None:
    profile = {"podTemplate": {"schedulerName": "gangs"}}
    found = parse_platform(
        {"accelerators": {"h100": profile}, "gangScheduling": {"scheduler": "gangs"}}, "platform.yaml"
    )
    assert found.gang_scheduling is not None
