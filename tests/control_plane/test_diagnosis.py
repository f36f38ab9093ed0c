"""Every obstacle is reported in the recipe's status, with its cause."""

import pytest
from megatron_contract.environment import CONTAINER_NAME

from testkit.errors import ApiError
from testkit.fake_nodes import ended, pod_stage
from testkit.fake_trainers import set_container_waiting
from testkit.ports import LOOPBACK, free_port
from testkit.run_state import RunState
from testkit.waiting import wait_until
from tests.control_plane.test_flows import PREPARED
from tests.control_plane.world import World


def message_of(world: World, name: str, kind: str, reason: str) -> str:
    """The message of a condition once it has this reason."""
    return str(world.wait_for(name, conditions={kind: reason}).conditions[kind]["message"])


def test_a_refusal_names_field_and_remedy_and_nothing_is_created(world: World) -> None:
    world.apply("run", accelerator={"type": "x900", "count": 4})
    state = world.wait_for("run", phase="Refused", conditions={"Planned": "Refused"})
    message = state.conditions["Planned"]["message"]
    assert message == "spec.accelerator.type: the platform has no accelerator 'x900'; use one of: simulated"
    for kind in (*world.backend.kinds, "PersistentVolumeClaim", "Pod"):
        assert world.api.list(kind, world.namespace) == []
    world.wait_for_events("Refused")
    events = world.api.list("Event", world.namespace)
    assert [(e["reason"], e["type"], e["message"]) for e in events] == [("Refused", "Warning", message)]


def test_a_refused_recipe_that_is_corrected_runs(world: World) -> None:
    world.apply("run", accelerator={"type": "x900", "count": 4})
    world.wait_for("run", phase="Refused")
    world.edit("run", accelerator={"type": "simulated", "perNode": 2})
    world.wait_for("run", pods=2, observed=True, conditions={"Planned": "Planned"})


def test_a_cluster_without_the_kind_of_job_is_reported(world: World) -> None:
    """The gateway hides the API group, as in a cluster without its controller."""
    backend = world.backend.manifests
    world.gateway.hidden = f"/apis/{backend.GROUP}"
    world.apply("run")
    state = world.wait_for("run", phase="Pending", conditions={"Running": f"{backend.KIND}Missing"})
    assert state.conditions["Running"]["message"] == (
        f"this cluster does not know {backend.KIND} ({backend.GROUP}/{backend.VERSION}); "
        f"install {backend.CONTROLLER}"
    )
    world.gateway.hidden = None
    world.wait_for("run", pods=2)


def test_a_missing_claim_is_named_and_awaited(world: World) -> None:
    data = {
        "volume": {"claimName": "corpus"},
        "tokenizer": {"tokenizerType": "NullTokenizer"},
        "blend": [{"path": "text"}],
    }
    world.apply("run", data=data, model={"vocabSize": 4096})
    message = message_of(world, "run", "Running", "VolumeClaimMissing")
    assert message.startswith(f"PersistentVolumeClaim corpus does not exist in namespace {world.namespace}")
    assert not world.job_exists("run")
    create_claim(world, "corpus")
    world.wait_for("run", pods=2)


def create_claim(world: World, name: str) -> None:
    """A user creates a claim."""
    world.api.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": world.namespace},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "resources": {"requests": {"storage": "1Gi"}},
                "storageClassName": "control-plane-tests",
            },
        }
    )


def test_a_change_that_needs_a_missing_claim_waits_while_the_run_continues(world: World) -> None:
    world.apply("run")
    old = world.train("run", 10).job_uid
    world.edit("run", checkpoint={"volume": {"claimName": "elsewhere"}})
    world.wait_for("run", conditions={"Prepared": "VolumeClaimMissing"})
    assert world.train("run", 11).job_uid == old
    create_claim(world, "elsewhere")
    world.wait_for("run", job=True, without=[old], observed=True)


def create_quota(world: World, resource: str, amount: str) -> None:
    """A quota in the test's namespace, once it is enforced."""
    world.api.create(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "limit", "namespace": world.namespace},
            "spec": {"hard": {resource: amount}},
        }
    )
    wait_until(
        "the quota to be enforced",
        lambda: (world.api.get("ResourceQuota", world.namespace, "limit").get("status") or {}).get("hard"),
    )


def test_a_quota_on_accelerators_is_reported(world: World) -> None:
    create_quota(world, "requests.nvidia.com/gpu", "2")
    world.apply("run")
    message = message_of(world, "run", "Running", "QuotaExceeded")
    assert "exceeded quota: limit, requested: requests.nvidia.com/gpu=2" in message


def test_a_quota_on_claims_is_reported(world: World) -> None:
    create_quota(world, "persistentvolumeclaims", "0")
    world.apply("run")
    message = message_of(world, "run", "Running", "QuotaExceeded")
    assert "exceeded quota: limit, requested: persistentvolumeclaims=1" in message


def test_the_job_of_a_run_whose_token_uses_up_a_quota_is_replaced(world: World) -> None:
    world.apply("run")
    before = world.train("run", 60, checkpoint=50)
    create_quota(world, "count/secrets", "1")
    world.edit("run", env={"NCCL_DEBUG": "INFO"})
    world.wait_for("run", pods=2, without=[*before.pod_uids, before.job_uid], observed=True)


def test_a_quota_without_room_for_the_preparation_is_reported_until_it_is_raised(world: World) -> None:
    create_quota(world, "count/jobs.batch", "0")
    world.apply("run", data=PREPARED)
    message = message_of(world, "run", "Running", "QuotaExceeded")
    assert "exceeded quota: limit, requested: count/jobs.batch=1" in message
    world.api.patch("ResourceQuota", world.namespace, "limit", {"spec": {"hard": {"count/jobs.batch": "9"}}})
    world.wait_for("run", conditions={"Prepared": "Prepared"})


@pytest.mark.job_backends(
    "pytorchjob", "jobset", reason="the test asks with a job, which creates no TrainJob"
)
def test_a_webhook_of_jobs_that_does_not_respond_is_reported_until_it_does(world: World) -> None:
    backend = world.backend.manifests
    rule = {
        "apiGroups": [backend.GROUP],
        "apiVersions": ["*"],
        "operations": ["CREATE"],
        "resources": [f"{backend.KIND.lower()}s"],
    }
    webhook = {
        "name": "down.example.com",
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": world.namespace}},
        "clientConfig": {"url": f"https://{LOOPBACK}:{free_port()}"},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    name = f"{world.namespace}-down"
    world.api.create(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": [webhook],
        }
    )
    metadata = {"name": "other", "namespace": world.namespace}
    template = {"spec": {"containers": [{"name": CONTAINER_NAME, "image": "registry.example/image"}]}}
    job = world.backend.suspended(metadata, template)

    def is_called() -> bool:
        try:
            world.api.create(job, dryRun="All")
        except ApiError as error:
            return error.status == 500
        return False

    try:
        # The API server calls a webhook a moment after it was created.
        wait_until("the webhook to be called", is_called)
        world.apply("run")
        message = message_of(world, "run", "Running", "JobRefused")
        assert 'failed calling webhook "down.example.com"' in message
    finally:
        world.api.delete("ValidatingWebhookConfiguration", None, name)
    world.wait_for("run", pods=2)


def test_a_quota_that_lets_a_preparation_have_no_pod_is_reported_until_it_is_raised(world: World) -> None:
    create_quota(world, "pods", "0")
    world.apply("run", data=PREPARED)
    message = message_of(world, "run", "Prepared", "QuotaExceeded")
    assert "exceeded quota: limit, requested: pods=1" in message
    world.api.patch("ResourceQuota", world.namespace, "limit", {"spec": {"hard": {"pods": "9"}}})
    world.wait_for("run", conditions={"Prepared": "Prepared"})


def test_unschedulable_pods_are_reported_with_the_schedulers_message(world: World) -> None:
    world.apply("run", scheduling={"nodeSelector": {"pool": "nowhere"}})

    def names_both_pods(state: RunState) -> bool:
        message = str(state.conditions["Running"]["message"])
        return message.startswith("2 pods have no node; master-0: 0/")

    world.wait_for("run", phase="Starting", conditions={"Running": "Unschedulable"}, where=names_both_pods)


@pytest.mark.parametrize(
    ("waiting", "reason"),
    [("ImagePullBackOff", "ImagePullFailed"), ("CreateContainerConfigError", "PodConfigError")],
)
def test_a_container_that_cannot_start_is_reported(world: World, waiting: str, reason: str) -> None:
    world.apply("run")
    world.wait_for("run", pods=2)
    pod = world.pod_name("run-worker-0")
    set_container_waiting(world.api, world.namespace, pod, waiting, "message of the kubelet")
    message = message_of(world, "run", "Running", reason)
    assert message == f"worker-0: {waiting}: message of the kubelet"


def test_a_failed_preparation_is_reported_with_the_programs_message(world: World) -> None:
    """KWOK simulates a container that exits with code 65."""
    labels = {"megatron.training/recipe": "failing-preparation"}
    status = ended("prepare", 65, '{"message": "no file matches /nowhere/*.py"}')
    with pod_stage(world.api, "preparation-fails", labels, "Pending", status):
        data = {"volume": {"size": "1Gi"}, "prepare": {"source": "/nowhere", "include": "*.py"}}
        world.apply("failing-preparation", data=data)
        message = message_of(world, "failing-preparation", "Failed", "PrepareFailed")
    assert "no file matches /nowhere/*.py (exit code 65)" in message
    assert not world.job_exists("failing-preparation")


def test_a_failed_job_is_reported_with_the_trainers_message_and_its_pods_are_released(world: World) -> None:
    world.apply("run")
    world.wait_for("run", pods=2)
    world.terminate("run-worker-0", 65, '{"reason": "BadData", "message": "/data/web.idx is missing"}')
    state = world.wait_for("run", phase="Failed", conditions={"Failed": "JobFailed"})
    assert state.conditions["Failed"]["message"] == "worker-0: /data/web.idx is missing (exit code 65)"
    assert state.recovery.get("restarts", 0) == 0, "a final failure is no restart"
    # Only the failed pod is kept, with its log.
    wait_until("the other pods to be gone", lambda: world.places() == {"run-worker-0"})


def test_a_name_that_is_taken_is_reported(world: World) -> None:
    world.apply("first")
    job = world.wait_for("first", pods=2, job=True).job
    assert job is not None
    metadata = {"name": "taken", "namespace": world.namespace}
    world.api.create({k: job[k] for k in ("apiVersion", "kind", "spec")} | {"metadata": metadata})
    world.apply("taken")
    message = message_of(world, "taken", "Running", "NameTaken")
    assert message.startswith(f"{world.job_kind} taken exists and is not this recipe's")


def test_an_invalid_platform_file_is_reported_and_a_corrected_one_takes_effect(world: World) -> None:
    text = world.api.get("ConfigMap", "megatron-system", "megatron-platform")["data"]["platform.yaml"]

    def write(new: str) -> None:
        body = {"data": {"platform.yaml": new}}
        world.api.patch("ConfigMap", "megatron-system", "megatron-platform", body)

    write(text.replace("perNode", "perKnot") + "\nacceleratorz: {}\n")
    try:
        # The operator caches the file for a second.
        message = wait_until("the platform to be refused", lambda: refusal(world))
    finally:
        write(text)
    assert "platform.yaml.acceleratorz" in message
    assert "correct it in ConfigMap megatron-system/megatron-platform" in message
    last = max(r["metadata"]["name"] for r in world.api.list("MegatronRecipe", world.namespace))
    world.wait_for(last, phase="Starting", observed=True)


def refusal(world: World) -> str | None:
    """The message of the refusal of a new recipe; None where it is accepted."""
    name = f"run-{len(world.api.list('MegatronRecipe', world.namespace)):02}"
    world.apply(name)
    state = world.wait_for(name, phase=("Refused", "Starting"))
    return str(state.conditions["Planned"]["message"]) if state.phase == "Refused" else None


def test_the_schema_refuses_before_the_operator_sees_the_recipe(world: World) -> None:
    with pytest.raises(ApiError, match=r"spec\.accelerator\.count"):
        world.apply("run", accelerator={"count": 0})
