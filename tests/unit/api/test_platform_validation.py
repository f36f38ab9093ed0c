"""podTemplate of a profile: conflicts with the operator are refused with field, value and fix."""

from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.platform_validation import beyond_baseline, parse_platform

VOLUME = {"name": "gib", "hostPath": {"path": "/home/gib"}}


def errors_of(**profile: Any) -> list[tuple[str, str, str]]:
    """Field below the profile, message and fix of each error."""
    with pytest.raises(InvalidRecipeError) as caught:
        parse_platform({"accelerators": {"h100": profile}}, "platform.yaml")
    prefix = "platform.yaml.accelerators.h100."
    assert all(error.field.startswith(prefix) for error in caught.value.errors)
    return [(error.field.removeprefix(prefix), error.message, error.fix) for error in caught.value.errors]


def overlay_error(**overlay: Any) -> tuple[str, str, str]:
    """The only error of a podTemplate, its field below podTemplate."""
    [(field, message, fix)] = errors_of(podTemplate=overlay)
    return field.removeprefix("podTemplate."), message, fix


@pytest.mark.parametrize(
    ("overlay", "field", "value"),
    [
        ({"volumes": [{"name": "shm", "emptyDir": {}}]}, "volumes[0].name", "'shm'"),
        ({"volumes": [VOLUME, VOLUME]}, "volumes[1].name", "'gib'"),
        ({"volumes": [{"name": "gib"}]}, "volumes[0]", "no source"),
        ({"volumes": [VOLUME | {"emptyDir": {}}]}, "volumes[0]", "hostPath, emptyDir"),
        ({"volumes": [{"name": "a", "hostPath": {"path": "../x"}}]}, "volumes[0].hostPath.path", "'../x'"),
        ({"volumeMounts": [{"name": "gib", "mountPath": "/gib"}]}, "volumeMounts[0].name", "'gib'"),
        ({"resources": {"nvidia.com/gpu": "8"}}, "resources.nvidia.com/gpu", "'nvidia.com/gpu'"),
        ({"resources": {"cpu": "8"}}, "resources.cpu", "'cpu'"),
        ({"resourceClaims": [{"name": "nic"}]}, "resourceClaims[0]", "no source"),
        ({"sidecars": [{"name": "pytorch", "image": "a"}]}, "sidecars[0].name", "'pytorch'"),
        ({"sidecars": [{"name": "rx", "image": "a", "ports": [8432]}]}, "sidecars[0].ports", "8432"),
        ({"annotations": {"megatron.training/hash": "1"}}, "annotations.megatron.training/hash", "operator"),
        ({"annotations": {"a b": "1"}}, "annotations['a b']", "'a b'"),
        ({"runtimeClassName": "Nvidia!"}, "runtimeClassName", "'Nvidia!'"),
        ({"capabilities": ["SYS_ADMIN"]}, "capabilities[0]", "'SYS_ADMIN'"),
        ({"privileged": True}, "privileged", "unknown field"),
    ],
)
def test_a_conflict_is_refused_with_field_value_and_fix(overlay: Any, field: str, value: str) -> None:
    found, message, fix = overlay_error(**overlay)
    assert found == field
    assert value in message
    assert fix


@pytest.mark.parametrize("path", ["/checkpoints", "/data/x", "/dev/shm", "/dev", "/", "/tmp/a"])
def test_a_mount_cannot_hide_or_enter_a_directory_of_the_operator(path: str) -> None:
    found, message, fix = overlay_error(volumes=[VOLUME], volumeMounts=[{"name": "gib", "mountPath": path}])
    assert found == "volumeMounts[0].mountPath"
    assert repr(path) in message
    assert fix == "mount it elsewhere"


def test_a_sidecar_may_mount_where_the_operator_mounts_in_the_trainer() -> None:
    sidecar = {"name": "rx", "image": "a", "volumeMounts": [{"name": "gib", "mountPath": "/tmp"}]}
    parse_platform(
        {"accelerators": {"h100": {"podTemplate": {"volumes": [VOLUME], "sidecars": [sidecar]}}}}, "p"
    )


def test_a_device_is_requested_in_one_place() -> None:
    [(field, message, _)] = errors_of(
        extraResources={"rdma/ib": "8"}, podTemplate={"resources": {"rdma/ib": "8"}}
    )
    assert field == "podTemplate.resources.rdma/ib"
    assert "extraResources" in message


def test_a_variable_that_the_operator_overwrites_is_refused_at_the_profile() -> None:
    [(field, message, fix)] = errors_of(env={"MASTER_ADDR": "me"})
    assert (field, fix) == ("env.MASTER_ADDR", "leave it out")
    assert "'me'" in message


def test_annotations_and_arguments_of_sidecars_may_have_several_lines() -> None:
    overlay = {
        "annotations": {"networking.gke.io/interfaces": "[\n]\n"},
        "sidecars": [{"name": "rx", "image": "a", "args": ["set -e\nrun\n"]}],
    }
    platform = parse_platform({"accelerators": {"h100": {"podTemplate": overlay}}}, "p")
    assert platform.accelerators["h100"].pod_template.sidecars[0].args == ["set -e\nrun\n"]


def test_what_pod_security_baseline_refuses_is_listed() -> None:
    overlay = {
        "hostNetwork": True,
        "capabilities": ["IPC_LOCK"],
        "volumes": [VOLUME, {"name": "scratch", "emptyDir": {}}],
        "sidecars": [
            {"name": "net", "image": "a", "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}},
            {"name": "plain", "image": "a", "securityContext": {"capabilities": {"add": ["CHOWN"]}}},
        ],
    }
    platform = parse_platform({"accelerators": {"h100": {"podTemplate": overlay}}}, "p")
    assert beyond_baseline(platform.accelerators["h100"]) == [
        "capability IPC_LOCK", "hostNetwork", "hostPath volume gib", "capabilities of sidecar net",
    ]  # fmt: skip


@pytest.mark.parametrize("hardware", ["mi300x", "MI355X", "gaudi3", "tpu-v5p", "trn2.48xlarge"])
def test_a_profile_of_another_vendors_accelerator_is_refused(hardware: str) -> None:
    [(field, message, _)] = errors_of(hardware=hardware)
    assert field == "hardware"
    assert repr(hardware) in message
    assert "CUDA" in message


SHEET = {"memoryGiB": 80, "bf16Teraflops": 900, "memoryGBps": 3000, "linkGBps": 400, "networkGBps": 50}


def test_a_data_sheet_names_what_it_lacks() -> None:
    assert [field for field, _, _ in errors_of(dataSheet=SHEET)] == ["dataSheet.domain"]


def test_a_data_sheet_of_a_cpu_is_refused() -> None:
    [(field, message, _)] = errors_of(platform="cpu", dataSheet={**SHEET, "domain": 8})
    assert field == "dataSheet"
    assert "no effect" in message


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        ([], "'rack' is not in topology (empty)"),
        (["block", "zone"], "'rack' is not in topology (block, zone)"),
    ],
)
def test_a_required_level_is_one_of_the_topology(topology: list[str], message: str) -> None:
    [(field, found, fix)] = errors_of(topology=topology, requiredTopology="rack")
    assert (field, found) == ("requiredTopology", message)
    assert fix == "add it to topology, nearest first, or require one of its keys"


@pytest.mark.parametrize(
    ("jobs", "field", "message"),
    [
        ({"tolerations": [{"effect": "NoSchedule"}]}, "tolerations[0].key", "is not set"),
        ({"tolerations": [{"key": "a b"}]}, "tolerations[0].key", "invalid label key 'a b'"),
        (
            {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]},
            "tolerations[0].value",
            "'b' has no effect with operator Exists",
        ),
        (
            {"tolerations": [{"key": "a", "value": "b c"}]},
            "tolerations[0].value",
            "invalid label value 'b c'",
        ),
        (
            {"tolerations": [{"key": "a"}, {"key": "a", "effect": "NoSchedule", "tolerationSeconds": 3}]},
            "tolerations[1].tolerationSeconds",
            "3 is for effect NoExecute alone",
        ),
        ({"nodeSelector": {"a b": "c"}}, "nodeSelector['a b']", "invalid label key 'a b'"),
        ({"nodeSelector": {"pool": "c d"}}, "nodeSelector.pool", "invalid label value 'c d'"),
        ({"affinity": {}}, "affinity", "unknown field"),
    ],
)
def test_nodes_of_cpu_jobs_that_the_api_server_would_refuse_are_refused(
    jobs: Any, field: str, message: str
) -> None:
    with pytest.raises(InvalidRecipeError) as caught:
        parse_platform({"cpuJobs": jobs}, "platform.yaml")
    [error] = caught.value.errors
    assert (error.field, error.message) == (f"platform.yaml.cpuJobs.{field}", message)
    assert error.fix


@pytest.mark.parametrize(
    ("profile", "field", "message"),
    [
        (
            {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]},
            "tolerations[0].value",
            "'b' has no effect with operator Exists",
        ),
        (
            {"tolerations": [{"key": "a", "effect": "NoSchedule", "tolerationSeconds": 3}]},
            "tolerations[0].tolerationSeconds",
            "3 is for effect NoExecute alone",
        ),
        ({"nodeLabels": {"a b": "x"}}, "nodeLabels['a b']", "invalid label key 'a b'"),
        ({"nodeLabels": {"pool": "x y"}}, "nodeLabels.pool", "invalid label value 'x y'"),
        ({"topology": ["rack", "a b"]}, "topology[1]", "invalid label key 'a b'"),
        ({"resourceName": "nv gpu"}, "resourceName", "invalid resource name 'nv gpu'"),
        ({"resourceName": ""}, "resourceName", "invalid resource name ''"),
        ({"extraResources": {"x y": "1"}}, "extraResources['x y']", "invalid resource name 'x y'"),
        (
            {"podTemplate": {"resources": {"rdma/i b": "1"}}},
            "podTemplate.resources['rdma/i b']",
            "invalid resource name 'rdma/i b'",
        ),
        ({"env": {"A=B": "1"}}, "env['A=B']", "invalid variable name 'A=B'"),
        ({"image": "reg/x:a b"}, "image", "invalid image 'reg/x:a b'"),
    ],
)
def test_what_the_api_server_would_refuse_in_pods_of_a_profile_is_refused(
    profile: Any, field: str, message: str
) -> None:
    [(found, text, fix)] = errors_of(**profile)
    assert (found, text) == (field, message)
    assert fix


@pytest.mark.parametrize(
    ("platform", "field", "message"),
    [
        ({"image": "reg/x:a b"}, "image", "invalid image 'reg/x:a b'"),
        ({"bridgeImage": "a b"}, "bridgeImage", "invalid image 'a b'"),
        ({"imagePullSecrets": ["A B"]}, "imagePullSecrets[0]", "invalid name 'A B'"),
        ({"queue": "A B"}, "queue", "invalid name 'A B'"),
        ({"checkpoint": {"storageClassName": "A B"}}, "checkpoint.storageClassName", "invalid name 'A B'"),
        ({"dataStorageClassName": "A B"}, "dataStorageClassName", "invalid name 'A B'"),
        (
            {"networkPolicies": {"metricsFrom": ["A B"]}},
            "networkPolicies.metricsFrom[0]",
            "invalid name 'A B'",
        ),
    ],
)
def test_names_of_the_platform_that_the_api_server_would_refuse_are_refused(
    platform: Any, field: str, message: str
) -> None:
    with pytest.raises(InvalidRecipeError) as caught:
        parse_platform(platform, "platform")
    [error] = caught.value.errors
    assert (error.field, error.message) == (f"platform.{field}", message)
    assert error.fix


def test_an_image_may_be_left_empty_and_so_may_a_storage_class() -> None:
    platform = {
        "accelerators": {"h100": {"image": ""}},
        "image": "",
        "checkpoint": {"storageClassName": ""},
        "dataStorageClassName": "",
    }
    assert parse_platform(platform, "platform").checkpoint.storage_class_name == ""


def test_tolerations_and_labels_of_cpu_jobs_are_those_of_kubernetes() -> None:
    tolerations = [
        {"operator": "Exists"},
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "pool", "value": "cpu", "effect": "NoExecute", "tolerationSeconds": 60},
    ]
    jobs = {"tolerations": tolerations, "nodeSelector": {"node.kubernetes.io/pool": "cpu"}}
    parsed = parse_platform({"cpuJobs": jobs}, "platform.yaml").cpu_jobs
    assert parsed is not None
    assert parsed.wire() == jobs


@pytest.mark.parametrize(
    ("domains", "field", "message", "fix"),
    [
        (
            {"a/zone": {"nodes": 8}},
            "a/zone",
            "'a/zone' is not in topology (a/rack, a/block)",
            "add it to topology",
        ),
        (
            {"a/rack": {"nodes": 8}, "a/block": {"nodes": 8}},
            "a/block.nodes",
            "8 is not above the 8 of a/rack, which is nearer in topology",
            "correct one of the two",
        ),
        (
            {"a/rack": {"nodes": 8, "uplinkGBps": 25, "oversubscription": 2}},
            "a/rack.oversubscription",
            "2: uplinkGBps is set too",
            "leave one of the two out",
        ),
        (
            {"a/rack": {"nodes": 8, "uplinkGBps": 25}, "a/block": {"nodes": 32, "uplinkGBps": 40}},
            "a/block.uplinkGBps",
            "40 is above the 25 within its domains, by the uplink of a/rack",
            "correct one of the two, or leave it out",
        ),
        (
            {"kubernetes.io/hostname": {"nodes": 1}},
            "kubernetes.io/hostname",
            "the size of 'kubernetes.io/hostname' is known: it is perNode accelerators",
            "leave it out",
        ),
        (
            {"nvidia.com/gpu.clique": {"nodes": 18}},
            "nvidia.com/gpu.clique",
            "the size of 'nvidia.com/gpu.clique' is known: it is an NVLink domain, of the table or dataSheet",
            "leave it out",
        ),
    ],
)
def test_a_domain_of_the_topology_is_refused_with_what_to_correct(
    domains: Any, field: str, message: str, fix: str
) -> None:
    [(found, text, what)] = errors_of(topology=["a/rack", "a/block"], topologyDomains=domains)
    assert (found, text) == (f"topologyDomains.{field}", message)
    assert what.startswith(fix)


def test_an_uplink_above_the_network_of_the_data_sheet_is_refused() -> None:
    sheet = {"memoryGiB": 80, "bf16Teraflops": 900, "memoryGBps": 3000, "linkGBps": 400, "networkGBps": 50}
    rack, block = {"nodes": 8, "oversubscription": 2}, {"nodes": 32, "uplinkGBps": 30}
    asked = {"topology": ["a/rack", "a/block"], "dataSheet": sheet | {"domain": 8}}
    [(field, message, _)] = errors_of(**asked, topologyDomains={"a/rack": rack, "a/block": block})
    assert field == "topologyDomains.a/block.uplinkGBps"
    assert message == "30 is above the 25 within its domains, by the oversubscription of a/rack"
    [(field, message, _)] = errors_of(**asked, topologyDomains={"a/rack": {"nodes": 8, "uplinkGBps": 60}})
    assert message == "60 is above the 50 within its domains, by dataSheet.networkGBps"


def test_domains_of_accelerators_that_are_not_timed_are_refused() -> None:
    domains = {"a/rack": {"nodes": 8}}
    [(field, message, fix)] = errors_of(platform="cpu", topology=["a/rack"], topologyDomains=domains)
    assert field == "topologyDomains"
    assert message == "has no effect with platform cpu, which is planned without memory and speed"
    assert fix == "leave it out, or set platform to gpu"


def test_a_lead_time_without_start_times_is_refused() -> None:
    with pytest.raises(InvalidRecipeError) as caught:
        parse_platform({"maintenance": {"startTimes": [], "leadTime": 600}}, "platform")
    [error] = caught.value.errors
    assert (error.field, error.message) == (
        "platform.maintenance.leadTime",
        "600 has no effect without startTimes",
    )
    assert error.fix == "set startTimes, or leave it out"


@pytest.mark.parametrize(("written", "seconds"), [(900, 900), ("900s", 900), ("15m", 900), ("1h30m", 5400)])
def test_durations_are_seconds_or_have_units(written: Any, seconds: int) -> None:
    content = {"accelerators": {"h100": {"nodeLostAfter": written}}, "maintenance": {"leadTime": written}}
    platform = parse_platform(content, "platform")
    assert platform.accelerators["h100"].node_lost_after == seconds
    assert platform.maintenance.lead_time == seconds


def test_what_is_no_duration_is_refused_with_examples() -> None:
    content = {"accelerators": {"h100": {"nodeLostAfter": "30"}}, "maintenance": {"leadTime": "15 min"}}
    with pytest.raises(InvalidRecipeError) as caught:
        parse_platform(content, "platform")
    fix = "use seconds, or for example 10m or 1h30m"
    assert {(each.field, each.message, each.fix) for each in caught.value.errors} == {
        ("platform.accelerators.h100.nodeLostAfter", "invalid duration '30'", fix),
        ("platform.maintenance.leadTime", "invalid duration '15 min'", fix),
    }


def test_signs_that_move_runs_without_any_sign_are_refused() -> None:
    with pytest.raises(InvalidRecipeError) as caught:
        parse_platform({"badNodes": {"moveRuns": True, "conditions": [], "taints": []}}, "platform")
    [error] = caught.value.errors
    assert (error.field, error.message, error.fix) == (
        "platform.badNodes.moveRuns",
        "true has no effect while badNodes.conditions and badNodes.taints are empty",
        "name signs in one, or leave it out",
    )
    assert parse_platform({"badNodes": {"moveRuns": True, "taints": []}}, "platform").bad_nodes.move_runs


@pytest.mark.parametrize("key", ["bad key!", "", "/start", "example.com/"])
def test_a_start_time_that_no_label_or_annotation_can_have_is_refused(key: str) -> None:
    with pytest.raises(InvalidRecipeError) as caught:
        parse_platform({"maintenance": {"startTimes": ["example.com/start", key]}}, "platform")
    [error] = caught.value.errors
    assert (error.field, error.message) == (
        "platform.maintenance.startTimes[1]",
        f"invalid label key {key!r}",
    )
    assert error.fix == "use for example example.com/zone"
