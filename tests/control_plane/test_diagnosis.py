"""Whatever stands in the way is told in the recipe itself, within seconds, with its cause."""

import pytest

from testkit.errors import ApiError
from tests.control_plane.eventually import eventually
from tests.control_plane.trainers import hold_container
from tests.control_plane.world import World

SECONDS = 20


def test_a_refused_recipe_says_field_numbers_and_mend_and_makes_nothing(world: World) -> None:
    world.apply("run", accelerator={"type": "tpu", "count": 4})
    message = world.await_reason("run", "Planned", "Refused", SECONDS)["message"]
    assert message == (
        "spec.accelerator.type: the platform has no accelerator 'tpu'; use one that it has: simulated"
    )
    assert world.status("run")["phase"] == "Refused"
    for kind in ("PyTorchJob", "PersistentVolumeClaim", "Pod"):
        assert world.api.list(kind, world.namespace) == []
    events = world.api.list("Event", world.namespace)
    assert [(e["reason"], e["type"], e["message"]) for e in events] == [("Refused", "Warning", message)]


def test_a_refused_recipe_that_is_corrected_runs(world: World) -> None:
    world.apply("run", accelerator={"type": "tpu", "count": 4})
    world.await_phase("run", "Refused")
    world.edit("run", accelerator={"type": "simulated", "perNode": 2})
    world.await_pods("run")
    world.await_reason("run", "Planned", "Planned")


def test_a_cluster_without_pytorchjob_is_told_so(world: World) -> None:
    """The gateway hides the API group, as a cluster without the training-operator does."""
    world.gateway.hidden = "/apis/kubeflow.org"
    world.apply("run")
    message = world.await_reason("run", "Running", "PyTorchJobMissing", SECONDS)["message"]
    assert message == (
        "this cluster does not know PyTorchJob (kubeflow.org/v1); install the Kubeflow training-operator"
    )
    assert world.status("run")["phase"] == "Pending"
    world.gateway.hidden = None
    world.await_pods("run")


def test_a_missing_claim_is_named_and_waited_for(world: World) -> None:
    data = {
        "volume": {"claimName": "corpus"},
        "tokenizer": {"tokenizerType": "NullTokenizer"},
        "blend": [{"path": "text"}],
    }
    world.apply("run", data=data, model={"vocabSize": 4096})
    message = world.await_reason("run", "Running", "VolumeClaimMissing", SECONDS)["message"]
    assert message.startswith(f"PersistentVolumeClaim corpus does not exist in namespace {world.namespace}")
    assert world.job("run") is None
    claim(world, "corpus")
    world.await_pods("run")


def claim(world: World, name: str) -> None:
    """A claim that a user makes."""
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


def test_a_change_that_needs_a_missing_claim_waits_while_the_run_goes_on(world: World) -> None:
    world.apply("run")
    world.train("run", 10)
    old = world.api.get("PyTorchJob", world.namespace, "run")["metadata"]["uid"]
    world.edit("run", checkpoint={"volume": {"claimName": "elsewhere"}})
    world.await_reason("run", "Prepared", "VolumeClaimMissing", SECONDS)
    world.train("run", 11)
    assert world.api.get("PyTorchJob", world.namespace, "run")["metadata"]["uid"] == old
    claim(world, "elsewhere")

    def replaced() -> bool:
        job = world.job("run")
        return job is not None and job["metadata"]["uid"] != old

    eventually(replaced, "the change is carried out")


def quota(world: World, resource: str, amount: str) -> None:
    world.api.create(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "limit", "namespace": world.namespace},
            "spec": {"hard": {resource: amount}},
        }
    )
    eventually(
        lambda: (world.api.get("ResourceQuota", world.namespace, "limit").get("status") or {}).get("hard"),
        "the quota holds",
    )


def test_a_quota_on_accelerators_is_told(world: World) -> None:
    quota(world, "requests.nvidia.com/gpu", "2")
    world.apply("run")
    message = world.await_reason("run", "Running", "QuotaExceeded", SECONDS)["message"]
    assert "exceeded quota: limit, requested: requests.nvidia.com/gpu=2" in message


def test_a_quota_on_claims_is_told(world: World) -> None:
    quota(world, "persistentvolumeclaims", "0")
    world.apply("run")
    message = world.await_reason("run", "Running", "QuotaExceeded", SECONDS)["message"]
    assert "exceeded quota: limit, requested: persistentvolumeclaims=1" in message


def test_pods_without_a_node_are_told_with_the_schedulers_words(world: World) -> None:
    world.apply("run", scheduling={"nodeSelector": {"pool": "nowhere"}})
    world.await_reason("run", "Running", "Unschedulable", SECONDS)

    def both_are_told() -> bool:
        # The first look may come between the scheduler's two verdicts.
        message: str = world.condition("run", "Running")["message"]
        return message.startswith("2 pods have no node; master-0: 0/")

    eventually(both_are_told, "both pods and the scheduler's words are told", SECONDS)
    assert world.status("run")["phase"] == "Starting"


@pytest.mark.parametrize(
    ("waiting", "reason"),
    [("ImagePullBackOff", "ImagePullFailed"), ("CreateContainerConfigError", "PodConfigError")],
)
def test_a_container_that_cannot_start_is_told(world: World, waiting: str, reason: str) -> None:
    world.apply("run")
    world.await_pods("run")
    hold_container(world.api, world.namespace, "run-worker-0", waiting, "the kubelet's own words")
    message = world.await_reason("run", "Running", reason, SECONDS)["message"]
    assert message == f"worker-0: {waiting}: the kubelet's own words"


FAILING_PREPARATION = {
    "apiVersion": "kwok.x-k8s.io/v1alpha1",
    "kind": "Stage",
    "metadata": {"name": "preparation-fails"},
    "spec": {
        "resourceRef": {"apiGroup": "v1", "kind": "Pod"},
        "selector": {
            "matchLabels": {"megatron.training/recipe": "failing-preparation"},
            "matchExpressions": [{"key": ".status.phase", "operator": "In", "values": ["Pending"]}],
        },
        "weight": 1000,
        "next": {
            "statusTemplate": (
                "phase: Failed\n"
                "containerStatuses:\n"
                "- name: prepare\n"
                "  image: i\n"
                "  imageID: ''\n"
                "  ready: false\n"
                "  restartCount: 0\n"
                "  state:\n"
                "    terminated:\n"
                "      exitCode: 65\n"
                "      reason: Error\n"
                '      message: \'{"message": "no file matches /nowhere/*.py"}\'\n'
            )
        },
    },
}


def test_a_preparation_that_fails_tells_the_programs_words(world: World) -> None:
    """KWOK plays a container that ends with 65."""
    world.api.apply(FAILING_PREPARATION)
    try:
        data = {"volume": {"size": "1Gi"}, "prepare": {"source": "/nowhere", "include": "*.py"}}
        world.apply("failing-preparation", data=data)
        message = world.await_reason("failing-preparation", "Failed", "PrepareFailed", SECONDS)["message"]
    finally:
        world.api.delete("Stage", None, "preparation-fails")
    assert "no file matches /nowhere/*.py (exit code 65)" in message
    assert world.job("failing-preparation") is None


def test_a_job_that_fails_tells_the_trainers_words_and_gives_its_pods_back(world: World) -> None:
    world.apply("run")
    world.await_pods("run")
    said = '{"reason": "BadData", "message": "/data/web.idx is missing"}'
    world.end("run-worker-0", 65, said)
    status = world.await_phase("run", "Failed", seconds=SECONDS)
    assert world.condition("run", "Failed")["message"] == "worker-0: /data/web.idx is missing (exit code 65)"
    assert (status.get("recovery") or {}).get("restarts", 0) == 0, "an end that is final is no restart"
    eventually(
        lambda: [p["metadata"]["name"] for p in world.api.list("Pod", world.namespace)] == ["run-worker-0"],
        "only the failed pod is left, with its log",
    )


def test_a_name_that_is_taken_is_told(world: World) -> None:
    world.apply("first")
    world.await_pods("first")
    job = world.api.get("PyTorchJob", world.namespace, "first")
    metadata = {"name": "taken", "namespace": world.namespace}
    world.api.create({k: job[k] for k in ("apiVersion", "kind", "spec")} | {"metadata": metadata})
    world.apply("taken")
    message = world.await_reason("taken", "Running", "NameTaken", SECONDS)["message"]
    assert message.startswith("PyTorchJob taken exists and is not this recipe's")


def test_a_broken_platform_file_is_told_and_mended_live(world: World) -> None:
    there = world.api.get("ConfigMap", "megatron-system", "megatron-platform")["data"]["platform.yaml"]

    def write(text: str) -> None:
        body = {"data": {"platform.yaml": text}}
        world.api.patch("ConfigMap", "megatron-system", "megatron-platform", body)

    write(there.replace("perNode", "perKnot") + "\nacceleratorz: {}\n")
    try:
        # What was read is taken as it is for a second.
        message = eventually(lambda: refusal(world), "the platform is refused", SECONDS)
    finally:
        write(there)
    assert "platform.yaml.acceleratorz" in message
    assert "correct it in ConfigMap megatron-system/megatron-platform" in message
    last = max(r["metadata"]["name"] for r in world.api.list("MegatronRecipe", world.namespace))
    world.await_phase(last, "Starting")


def refusal(world: World) -> str | None:
    """The words to a recipe made now, if it is refused."""
    name = f"run-{len(world.api.list('MegatronRecipe', world.namespace)):02}"
    world.apply(name)
    status = world.await_phase(name, "Refused", "Starting")
    return world.condition(name, "Planned")["message"] if status["phase"] == "Refused" else None


def test_the_schema_refuses_before_the_operator_is_asked(world: World) -> None:
    with pytest.raises(ApiError, match=r"spec\.accelerator\.count"):
        world.apply("run", accelerator={"count": 0})
