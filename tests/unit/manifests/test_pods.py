"""What pods ask for, where they go and what they may do."""

import re
from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.platform import Toleration


def test_shm_counts_in_the_memory_request_and_is_the_pods_share_of_the_node(run: Any) -> None:
    whole, eighth = run("llama3-8b-64-gpus"), run("one-gpu")
    assert whole.container()["resources"]["requests"]["memory"] == "1280Gi"
    assert eighth.container()["resources"]["requests"]["memory"] == "160Gi"
    shm = {volume["name"]: volume for volume in eighth.pod()["spec"]["volumes"]}["shm"]
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "32Gi"}


def test_rdma_goes_to_whole_node_pods_alone(run: Any) -> None:
    assert run("llama3-8b-64-gpus").container()["resources"]["limits"]["rdma/hca"] == "8"
    assert "rdma/hca" not in run("one-gpu").container()["resources"]["limits"]


def test_pods_pass_pod_security_restricted(run: Any) -> None:
    """The rules of the Pod Security Standard, level `restricted`, one by one."""
    for pod in [run("tiny-gpt").pod(), run("tiny-gpt").build().prepare_job["spec"]["template"]]:
        spec = pod["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] != 0
        assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
        assert all({"emptyDir", "persistentVolumeClaim"} & volume.keys() for volume in spec["volumes"])
        for container in spec["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_trainers_have_no_api_token_and_cannot_write_data(run: Any) -> None:
    pod = run("tiny-gpt").pod()
    assert pod["spec"]["automountServiceAccountToken"] is False
    mounts = {mount["mountPath"]: mount for mount in pod["spec"]["containers"][0]["volumeMounts"]}
    assert mounts["/data"]["readOnly"] is True
    assert mounts.keys() == {"/data", "/checkpoints", "/dev/shm", "/tmp"}


@pytest.mark.parametrize("recipe", ["llama3-8b-64-gpus", "tiny-gpt"])
def test_the_trainer_may_save_for_nearly_all_of_the_time_that_kubelet_gives_it(run: Any, recipe: str) -> None:
    given = run(recipe).pod()["spec"]["terminationGracePeriodSeconds"]
    values = {each["name"]: each.get("value") for each in run(recipe).container()["env"]}
    assert given - 15 <= int(values["MEGATRON_TERMINATION_GRACE"]) < given


def test_pods_that_share_a_tensor_parallel_group_have_to_lie_in_one_nvlink_domain(run: Any) -> None:
    manifest = run("llama3-70b-tp8-nvl72").build().job["spec"]["pytorchReplicaSpecs"]
    for replica in ("Master", "Worker"):
        near = manifest[replica]["template"]["spec"]["affinity"]["podAffinity"]
        [term] = near["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "nvidia.com/gpu.clique"
        assert term["labelSelector"]["matchLabels"].items() <= (
            manifest[replica]["template"]["metadata"]["labels"].items()
        )


def test_other_pods_prefer_one_nvlink_domain_where_it_has_several_nodes(run: Any) -> None:
    def narrow(spec: dict[str, Any]) -> None:
        spec["parallelism"]["tensorModelParallelSize"] = 4

    pod = run("llama3-70b-tp8-nvl72", narrow).pod()
    near = pod["spec"]["affinity"]["podAffinity"]
    assert near.keys() == {"preferredDuringSchedulingIgnoredDuringExecution"}
    first, second = near["preferredDuringSchedulingIgnoredDuringExecution"]
    assert first["podAffinityTerm"]["topologyKey"] == "nvidia.com/gpu.clique"
    assert first["weight"] > second["weight"]


def test_what_the_trainer_watches_itself_is_said_where_it_is_not_its_default(run: Any) -> None:
    usual = {"MEGATRON_HANG_TIMEOUT", "MEGATRON_PREFLIGHT", "MEGATRON_LOSS_ON_REPEAT"}
    assert not usual & run("tiny-gpt").env().keys()

    def watch(spec: dict[str, Any]) -> None:
        spec["recovery"] = {
            "hangTimeout": "90s",
            "preflight": True,
            "loss": {"spikeFactor": 2.5, "onRepeat": "skip"},
        }

    said = run("tiny-gpt", watch).env()
    assert said["MEGATRON_HANG_TIMEOUT"] == "90"
    assert said["MEGATRON_PREFLIGHT"] == "1"
    assert (said["MEGATRON_LOSS_SPIKE_FACTOR"], said["MEGATRON_LOSS_SPIKE_WINDOW"]) == ("2.5", "50")
    assert said["MEGATRON_LOSS_ON_REPEAT"] == "skip"


def test_affinity_prefers_near_over_far(run: Any) -> None:
    near_to_far = run("llama3-8b-64-gpus").pod()["spec"]["affinity"]["podAffinity"]
    terms = near_to_far["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [(term["weight"], term["podAffinityTerm"]["topologyKey"]) for term in terms] == [
        (100, "cloud.provider.com/topology-rack"),
        (50, "cloud.provider.com/topology-block"),
    ]


def tolerated(spec: dict[str, Any]) -> dict[str, int | None]:
    return {str(each.get("key")): each.get("tolerationSeconds") for each in spec["tolerations"]}


def test_pods_of_a_lost_node_are_replaced_after_half_a_minute_not_after_five(run: Any) -> None:
    spec = run("tiny-gpt").pod()["spec"]
    assert tolerated(spec) == {
        "node.kubernetes.io/not-ready": 30,
        "node.kubernetes.io/unreachable": 30,
    }


def test_what_the_profile_says_of_lost_nodes_holds(run: Any) -> None:
    tolerated_for_ever = Toleration(key="node.kubernetes.io/unreachable", operator="Exists")
    lost = run("tiny-gpt")
    profile = lost.resolved.profile.model_copy(
        update={"tolerations": [tolerated_for_ever], "node_lost_after": 5}
    )
    lost.resolved = lost.resolved.model_copy(update={"profile": profile})
    assert tolerated(lost.pod()["spec"]) == {
        "node.kubernetes.io/unreachable": None,
        "node.kubernetes.io/not-ready": 5,
    }


def test_a_single_pod_needs_no_company(run: Any) -> None:
    one = run("one-gpu")
    assert one.pod()["spec"]["affinity"].keys() == {"nodeAffinity"}
    assert one.build().claims[0]["spec"]["accessModes"] == ["ReadWriteOnce"]


def test_the_users_node_selector_adds_to_the_accelerators_labels(run: Any) -> None:
    affinity = run("llama3.1-8b-queued").pod()["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0]
    assert {term["key"]: term["values"] for term in terms["matchExpressions"]} == {
        "nvidia.com/gpu.product": ["NVIDIA-B200"],
        "pool": ["reserved"],
    }


@pytest.mark.parametrize(
    ("recipe", "change", "expected"),
    [
        ("llama3-8b-64-gpus", {"parallelism": {"tensorModelParallelSize": 2}}, "1"),
        (
            "llama3-8b-64-gpus",
            {"parallelism": {"tensorModelParallelSize": 1, "contextParallelSize": 1}},
            None,
        ),
        ("llama3.1-8b-queued", {}, None),
        ("tiny-gpt", {}, None),
    ],
    ids=["tensor parallel on Hopper", "data parallel alone", "Blackwell", "no GPU"],
)
def test_one_cuda_connection_where_megatron_asserts_it(
    run: Any, recipe: str, change: dict[str, Any], expected: str | None
) -> None:
    env = run(recipe, lambda spec: spec.update(change)).env()
    assert env.get("CUDA_DEVICE_MAX_CONNECTIONS") == expected


def test_the_owners_environment_yields_to_the_users(run: Any) -> None:
    env = run("llama3-8b-64-gpus", lambda spec: spec.update(env={"NCCL_IB_HCA": "mlx5_0"})).env()
    assert (env["NCCL_IB_HCA"], env["NCCL_SOCKET_IFNAME"]) == ("mlx5_0", "eth0")


def test_a_name_of_the_contract_cannot_be_set_by_a_recipe(run: Any) -> None:
    recipe = run("one-gpu", lambda spec: spec.update(env={"MEGATRON_PLATFORM": "cpu"}))
    with pytest.raises(
        InvalidRecipeError, match=re.escape("spec.env.MEGATRON_PLATFORM: is set by the operator")
    ):
        recipe.build()


def test_a_local_tier_is_a_volume_of_the_pod_that_megatron_saves_to_more_often(run: Any) -> None:
    def change(spec: dict[str, Any]) -> None:
        spec["checkpoint"] = spec.get("checkpoint", {}) | {
            "saveInterval": 500,
            "local": {"sizeLimit": "200Gi", "saveInterval": 50},
        }

    changed = run("one-gpu", change)
    volumes = {volume["name"]: volume for volume in changed.pod()["spec"]["volumes"]}
    assert volumes["local-checkpoints"]["emptyDir"] == {"sizeLimit": "200Gi"}
    container = changed.container()
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    words = container["args"]
    folder = words[words.index("--non-persistent-global-ckpt-dir") + 1]
    assert folder.startswith(mounts["local-checkpoints"] + "/")
    assert words[words.index("--non-persistent-save-interval") + 1] == "50"
    assert words[words.index("--non-persistent-ckpt-type") + 1] == "global"
    assert "local-checkpoints" not in {volume["name"] for volume in run("one-gpu").pod()["spec"]["volumes"]}
