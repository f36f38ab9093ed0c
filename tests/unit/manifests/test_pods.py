"""Trainer pods: resources, placement, security, environment."""

import re
from typing import Any

import pytest
from megatron_contract.environment import SETTINGS
from megatron_contract.tracking import MlflowRun, Tracking, WandbRun
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.platform import Toleration
from megatron_operator.manifests.pod import literal
from megatron_trainer.settings import read, read_tracking


def test_shm_is_part_of_the_memory_request_in_proportion_to_the_pod(run: Any) -> None:
    whole, eighth = run("llama3-8b-64-gpus"), run("one-gpu")
    assert whole.container()["resources"]["requests"]["memory"] == "1280Gi"
    assert eighth.container()["resources"]["requests"]["memory"] == "160Gi"
    shm = {volume["name"]: volume for volume in eighth.pod()["spec"]["volumes"]}["shm"]
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "32Gi"}


def test_pods_request_the_memory_of_offloaded_optimizer_states(run: Any) -> None:
    def offload(spec: dict[str, Any]) -> None:
        spec.setdefault("training", {})["usePrecisionAwareOptimizer"] = True
        spec["megatronArgs"] = {"optimizer-cpu-offload": True}

    offloading = run("llama3-8b-64-gpus", offload)
    (note,) = [each for each in offloading.plan.notes if each.startswith("optimizer-cpu-offload")]
    assert offloading.plan.memory_per_gpu.optimizer == 0
    # 8.03B parameters over 64 ranks, of which a pod has 8: 16 bytes each.
    more = 16 * offloading.plan.parameters / 8 / 2**30
    named = re.search(r"each pod requests ([0-9.]+) GiB more of its node's memory", note)
    assert named is not None
    assert float(named[1]) == pytest.approx(more, rel=0.02)
    requested = offloading.container()["resources"]["requests"]["memory"]
    assert int(requested.removesuffix("Mi")) / 1024 == pytest.approx(1280 + more, rel=0.001)


def test_only_whole_node_pods_request_rdma(run: Any) -> None:
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
        assert all(
            {"emptyDir", "persistentVolumeClaim", "secret"} & volume.keys() for volume in spec["volumes"]
        )
        for container in spec["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_trainers_have_no_api_token_and_cannot_write_data(run: Any) -> None:
    pod = run("tiny-gpt").pod()
    assert pod["spec"]["automountServiceAccountToken"] is False
    mounts = {mount["mountPath"]: mount for mount in pod["spec"]["containers"][0]["volumeMounts"]}
    assert mounts["/data"]["readOnly"] is True
    assert mounts["/run/megatron/gang"]["readOnly"] is True
    assert mounts.keys() == {"/data", "/checkpoints", "/dev/shm", "/tmp", "/run/megatron/gang"}


@pytest.mark.parametrize("recipe", ["llama3-8b-64-gpus", "tiny-gpt"])
def test_the_trainer_may_use_nearly_the_whole_grace_period_to_save(run: Any, recipe: str) -> None:
    grace = run(recipe).pod()["spec"]["terminationGracePeriodSeconds"]
    values = {each["name"]: each.get("value") for each in run(recipe).container()["env"]}
    assert grace - 15 <= int(values["MEGATRON_TERMINATION_GRACE"]) < grace


def test_a_larger_checkpoint_has_a_longer_grace_period(run: Any) -> None:
    """A node's part at 1 GB/s, twice, and a minute."""
    assert run("llama3-8b-64-gpus").pod()["spec"]["terminationGracePeriodSeconds"] == 300
    large = run("llama3-70b-tp8-nvl72")
    part = large.plan.parameters * 14 / large.plan.nodes / 1e9
    grace = large.pod()["spec"]["terminationGracePeriodSeconds"]
    assert max(300, 60 + 2 * part) <= grace <= max(300, 60 + 2 * part + 30)


@pytest.mark.parametrize("recipe", ["llama3-8b-64-gpus", "tiny-gpt"])
def test_a_stated_grace_period_is_kept(run: Any, recipe: str) -> None:
    def change(spec: dict[str, Any]) -> None:
        spec["recovery"] = {"terminationGracePeriodSeconds": 1200}

    stated = run(recipe, change)
    assert stated.pod()["spec"]["terminationGracePeriodSeconds"] == 1200
    assert stated.env()["MEGATRON_TERMINATION_GRACE"] == "1190"


@pytest.mark.parametrize("recipe", ["llama3-8b-64-gpus", "one-gpu"])
def test_gpu_pods_can_have_cores_of_their_own(run: Any, recipe: str) -> None:
    """What the static CPU manager asks for: QoS class Guaranteed and whole cores."""
    resources = run(recipe).container()["resources"]
    assert resources["requests"] == resources["limits"]
    assert resources["limits"]["cpu"].isdecimal()


def test_the_platform_can_leave_ranks_on_all_cores(run: Any) -> None:
    each = run("llama3-8b-64-gpus")
    assert "MEGATRON_BIND_CPUS" not in each.env()
    profile = each.resolved.profile.model_copy(update={"bind_cpus": False})
    each.resolved = each.resolved.model_copy(update={"profile": profile})
    assert read({"MEGATRON_PLATFORM": "gpu"}).bind_cpus is True
    assert read(each.env() | {"PET_NNODES": "1"}).bind_cpus is False


def test_compiled_kernels_outlive_a_pod(run: Any) -> None:
    env = run("one-gpu").env()
    assert env["TRITON_CACHE_DIR"].startswith("/checkpoints/")
    assert env["TORCHINDUCTOR_CACHE_DIR"].startswith("/checkpoints/")
    assert "TRITON_CACHE_DIR" not in run("tiny-gpt").env()


def test_pods_that_share_a_tensor_parallel_group_require_one_nvlink_domain(run: Any) -> None:
    manifest = run("llama3-70b-tp8-nvl72").build().job["spec"]["pytorchReplicaSpecs"]
    for replica in ("Master", "Worker"):
        near = manifest[replica]["template"]["spec"]["affinity"]["podAffinity"]
        [term] = near["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "nvidia.com/gpu.clique"
        assert term["labelSelector"]["matchLabels"].items() <= (
            manifest[replica]["template"]["metadata"]["labels"].items()
        )


def test_other_pods_prefer_one_nvlink_domain(run: Any) -> None:
    def narrow(spec: dict[str, Any]) -> None:
        spec["parallelism"]["tensorModelParallelSize"] = 4

    pod = run("llama3-70b-tp8-nvl72", narrow).pod()
    near = pod["spec"]["affinity"]["podAffinity"]
    assert near.keys() == {"preferredDuringSchedulingIgnoredDuringExecution"}
    first, second = near["preferredDuringSchedulingIgnoredDuringExecution"]
    assert first["podAffinityTerm"]["topologyKey"] == "nvidia.com/gpu.clique"
    assert first["weight"] > second["weight"]


def test_settings_of_the_trainer_are_passed_only_if_they_differ_from_its_defaults(run: Any) -> None:
    usual = {
        "MEGATRON_HANG_TIMEOUT",
        "MEGATRON_PREFLIGHT",
        "MEGATRON_NODE_NAME",
        "MEGATRON_LOSS_ON_REPEAT",
    }
    assert not usual & run("tiny-gpt").env().keys()

    def watch(spec: dict[str, Any]) -> None:
        spec["recovery"] = {
            "hangTimeout": "90s",
            "preflight": True,
            "loss": {"spikeFactor": 2.5, "onRepeat": "skip"},
        }

    container = run("tiny-gpt", watch).pod()["spec"]["containers"][0]
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert env["MEGATRON_HANG_TIMEOUT"] == "90"
    assert env["MEGATRON_PREFLIGHT"] == "1"
    (place,) = (each for each in container["env"] if each["name"] == "MEGATRON_NODE_NAME")
    assert place["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert (env["MEGATRON_LOSS_SPIKE_FACTOR"], env["MEGATRON_LOSS_SPIKE_WINDOW"]) == ("2.5", "50")
    assert env["MEGATRON_LOSS_ON_REPEAT"] == "skip"


def test_the_window_of_the_profiler_is_passed(run: Any) -> None:
    assert "MEGATRON_PROFILE" not in run("tiny-gpt").env()

    def record(spec: dict[str, Any]) -> None:
        spec["profile"] = {"start": 10, "end": 12, "ranks": [0, 3]}

    assert run("tiny-gpt", record).env()["MEGATRON_PROFILE"] == "10-12:0,3"


def test_trackers_are_passed_with_the_name_of_the_recipe(run: Any) -> None:
    assert "MEGATRON_TRACKING" not in run("tiny-gpt").env()

    def track(spec: dict[str, Any]) -> None:
        spec["tracking"] = {
            "tensorboard": {},
            "wandb": {"project": "p", "entity": "e", "secretKeyRef": {"name": "wandb", "key": "api-key"}},
            "mlflow": {"trackingUri": "https://mlflow.example.com", "experiment": "x", "name": "n"},
        }

    tracked = run("tiny-gpt", track)
    environment = {each["name"]: each.get("value") for each in tracked.container()["env"]}
    assert read_tracking(environment) == Tracking(
        tensorboard=True,
        wandb=WandbRun("p", "e", "tiny-gpt"),
        mlflow=MlflowRun("https://mlflow.example.com", "x", "n"),
    )
    assert environment["MEGATRON_RUN_ID"]
    (key,) = (each for each in tracked.container()["env"] if each["name"] == "WANDB_API_KEY")
    assert key["valueFrom"]["secretKeyRef"] == {"name": "wandb", "key": "api-key", "optional": False}
    assert environment["MEGATRON_SECRET_VARIABLES"] == "WANDB_API_KEY"
    # The end of the log could have the key.
    assert tracked.container()["terminationMessagePolicy"] == "File"


def test_nearer_topology_has_a_higher_weight(run: Any) -> None:
    near_to_far = run("llama3-8b-64-gpus").pod()["spec"]["affinity"]["podAffinity"]
    terms = near_to_far["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [(term["weight"], term["podAffinityTerm"]["topologyKey"]) for term in terms] == [
        (100, "cloud.provider.com/topology-rack"),
        (50, "cloud.provider.com/topology-block"),
    ]


def required_rack(spec: dict[str, Any]) -> None:
    spec["scheduling"] = spec.get("scheduling", {}) | {"requiredTopology": "cloud.provider.com/topology-rack"}


def test_a_required_level_is_required_affinity_to_the_gang_and_no_preference(run: Any) -> None:
    pod = run("llama3-8b-64-gpus", required_rack).pod()
    near = pod["spec"]["affinity"]["podAffinity"]
    assert near.keys() == {"requiredDuringSchedulingIgnoredDuringExecution"}, "a block has the whole rack"
    [term] = near["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "cloud.provider.com/topology-rack"
    own = term["labelSelector"]["matchLabels"]
    assert own.items() <= pod["metadata"]["labels"].items(), "the scheduler lets the first pod match itself"


def test_levels_nearer_than_the_required_one_are_preferred(run: Any) -> None:
    def block(spec: dict[str, Any]) -> None:
        spec["scheduling"] = {"requiredTopology": "cloud.provider.com/topology-block"}

    near = run("llama3-8b-64-gpus", block).pod()["spec"]["affinity"]["podAffinity"]
    [required] = near["requiredDuringSchedulingIgnoredDuringExecution"]
    [preferred] = near["preferredDuringSchedulingIgnoredDuringExecution"]
    assert required["topologyKey"] == "cloud.provider.com/topology-block"
    assert preferred["podAffinityTerm"]["topologyKey"] == "cloud.provider.com/topology-rack"


def test_a_tensor_parallel_group_over_pods_and_a_required_level_both_hold(run: Any) -> None:
    def block(spec: dict[str, Any]) -> None:
        spec["scheduling"] = {"requiredTopology": "cloud.provider.com/topology-block"}

    near = run("llama3-70b-tp8-nvl72", block).pod()["spec"]["affinity"]["podAffinity"]
    required = near["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [term["topologyKey"] for term in required] == [
        "nvidia.com/gpu.clique",
        "cloud.provider.com/topology-block",
    ]


def test_a_run_of_one_pod_has_no_affinity_to_itself(run: Any) -> None:
    assert "podAffinity" not in run("one-gpu", required_rack).pod()["spec"].get("affinity", {})


def tolerated(spec: dict[str, Any]) -> dict[str, int | None]:
    return {str(each.get("key")): each.get("tolerationSeconds") for each in spec["tolerations"]}


def test_pods_tolerate_a_lost_node_for_30_seconds(run: Any) -> None:
    spec = run("tiny-gpt").pod()["spec"]
    assert tolerated(spec) == {
        "node.kubernetes.io/not-ready": 30,
        "node.kubernetes.io/unreachable": 30,
    }


def test_tolerations_of_the_profile_take_precedence(run: Any) -> None:
    tolerated_without_limit = Toleration(key="node.kubernetes.io/unreachable", operator="Exists")
    lost = run("tiny-gpt")
    profile = lost.resolved.profile.model_copy(
        update={"tolerations": [tolerated_without_limit], "node_lost_after": 5}
    )
    lost.resolved = lost.resolved.model_copy(update={"profile": profile})
    assert tolerated(lost.pod()["spec"]) == {
        "node.kubernetes.io/unreachable": None,
        "node.kubernetes.io/not-ready": 5,
    }


def test_a_single_pod_has_no_pod_affinity(run: Any) -> None:
    one = run("one-gpu")
    assert one.pod()["spec"]["affinity"].keys() == {"nodeAffinity"}
    assert one.build().claims[0]["spec"]["accessModes"] == ["ReadWriteOnce"]


def test_the_node_selector_is_added_to_the_labels_of_the_profile(run: Any) -> None:
    affinity = run("llama3.1-8b-queued").pod()["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0]
    assert {term["key"]: term["values"] for term in terms["matchExpressions"]} == {
        "nvidia.com/gpu.product": ["NVIDIA-B200"],
        "pool": ["reserved"],
    }


def test_the_recipes_environment_overrides_the_profiles(run: Any) -> None:
    env = run("llama3-8b-64-gpus", lambda spec: spec.update(env={"NCCL_IB_HCA": "mlx5_0"})).env()
    assert (env["NCCL_IB_HCA"], env["NCCL_SOCKET_IFNAME"]) == ("mlx5_0", "eth0")


def environment(run: Any, **spec: Any) -> dict[str, Any]:
    return {
        entry["name"]: entry for entry in run("secrets", lambda found: found.update(spec)).container()["env"]
    }


def test_a_variable_of_the_recipe_from_a_secret_replaces_that_of_the_profile(run: Any) -> None:
    source = {"secretKeyRef": {"name": "net", "key": "hca"}}
    made = run("llama3-8b-64-gpus", lambda spec: spec.update(envValueFrom={"NCCL_IB_HCA": source}))
    entries = [entry for entry in made.container()["env"] if entry["name"] == "NCCL_IB_HCA"]
    assert [entry.get("value") for entry in entries] == [None]
    assert entries[0]["valueFrom"]["secretKeyRef"].items() >= source["secretKeyRef"].items()


def test_no_key_of_a_secret_becomes_a_setting_of_the_trainer(run: Any) -> None:
    """A variable of `env` overrides one of `envFrom`, whose names nobody knows before the pod starts."""
    assert set(SETTINGS) <= environment(run).keys()
    assert not set(SETTINGS) <= environment(run, envFrom=None).keys()


def test_settings_that_are_empty_are_those_that_are_not_set(run: Any) -> None:
    def settings(**spec: Any) -> Any:
        return read({name: entry.get("value", "") for name, entry in environment(run, **spec).items()})

    assert settings() == settings(envFrom=None)


def test_the_log_of_a_pod_with_secrets_does_not_become_its_termination_message(run: Any) -> None:
    no_secrets = {"envValueFrom": None, "envFrom": [{"configMapRef": {"name": "proxies"}}]}
    secret_keys = {"envFrom": None}
    for change, policy in ((no_secrets, "FallbackToLogsOnError"), (secret_keys, "File"), ({}, "File")):
        made = run("secrets", lambda spec, change=change: spec.update(change))
        assert made.container()["terminationMessagePolicy"] == policy


def test_preparation_has_the_service_account_but_no_variables_of_the_recipe(run: Any) -> None:
    pod = run("secrets").build().prepare_job["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "training"
    assert pod["automountServiceAccountToken"] is False
    names = [each["name"] for each in pod["containers"][0]["env"]]
    assert names == ["HOME", "MEGATRON_RUN_ID"]
    assert "envFrom" not in pod["containers"][0]


def test_pods_with_a_service_account_have_no_token_of_it(run: Any) -> None:
    spec = run("secrets").pod()["spec"]
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("training", False)


def test_a_recipe_cannot_set_a_reserved_environment_name(run: Any) -> None:
    recipe = run("one-gpu", lambda spec: spec.update(env={"MEGATRON_PLATFORM": "cpu"}))
    with pytest.raises(
        InvalidRecipeError, match=re.escape("spec.env.MEGATRON_PLATFORM: is set by the operator")
    ):
        recipe.build()


def test_local_checkpoints_are_saved_more_often_to_a_volume_of_the_pod(run: Any) -> None:
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


def test_an_argument_never_becomes_the_value_of_a_variable() -> None:
    assert literal("$(WANDB_API_KEY)/$HOME/$$") == "$$(WANDB_API_KEY)/$HOME/$$"
