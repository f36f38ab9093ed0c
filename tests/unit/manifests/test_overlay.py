"""podTemplate of a profile in trainer pods: what whole-node pods get, and what every pod gets."""

from typing import Any

import pytest
from megatron_operator.api import reserved_names
from megatron_operator.api.platform import AcceleratorProfile
from megatron_operator.api.pod_template import PodTemplateOverlay

OVERLAY = {
    "annotations": {"networking.gke.io/default-interface": "eth0"},
    "volumes": [{"name": "gib", "hostPath": {"path": "/home/gib"}}],
    "volumeMounts": [{"name": "gib", "mountPath": "/usr/local/gib"}],
    "resources": {"rdma/ib": "8"},
    "resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "nics"}],
    "sidecars": [{"name": "rx", "image": "rx:1", "securityContext": {"privileged": True, "runAsUser": 0}}],
    "hostNetwork": True,
    "runtimeClassName": "nvidia",
    "schedulerName": "gang",
    "capabilities": ["IPC_LOCK"],
}


def with_profile(run: Any, **update: Any) -> Any:
    profile = run.resolved.profile.model_copy(update=update)
    run.resolved = run.resolved.model_copy(update={"profile": profile})
    return run


@pytest.fixture
def overlaid(run: Any) -> Any:
    return lambda name: with_profile(run(name), pod_template=PodTemplateOverlay.model_validate(OVERLAY))


def test_a_whole_node_pod_has_all_of_the_overlay(overlaid: Any) -> None:
    pod = overlaid("llama3-8b-64-gpus").pod()
    spec, trainer = pod["spec"], pod["spec"]["containers"][0]
    assert pod["metadata"]["annotations"] == OVERLAY["annotations"]
    assert spec["volumes"][-1] == {"name": "gib", "hostPath": {"path": "/home/gib"}}
    assert trainer["volumeMounts"][-1] == {"name": "gib", "mountPath": "/usr/local/gib"}
    assert trainer["resources"]["limits"]["rdma/ib"] == trainer["resources"]["requests"]["rdma/ib"] == "8"
    assert spec["resourceClaims"] == [{"name": "nic", "resourceClaimTemplateName": "nics"}]
    assert trainer["resources"]["claims"] == [{"name": "nic"}]
    assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert (spec["runtimeClassName"], spec["schedulerName"]) == ("nvidia", "gang")
    assert trainer["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}


def test_a_sidecar_does_not_keep_the_pod_from_ending(overlaid: Any) -> None:
    [sidecar] = overlaid("llama3-8b-64-gpus").pod()["spec"]["initContainers"]
    assert (sidecar["name"], sidecar["restartPolicy"]) == ("rx", "Always")
    assert sidecar["securityContext"]["privileged"] is True
    assert sidecar["securityContext"]["runAsNonRoot"] is False


def test_part_of_a_node_gets_runtime_scheduler_and_volumes_but_no_fabric(overlaid: Any) -> None:
    pod = overlaid("one-gpu").pod()
    spec, trainer = pod["spec"], pod["spec"]["containers"][0]
    assert (spec["runtimeClassName"], spec["schedulerName"]) == ("nvidia", "gang")
    assert spec["volumes"][-1]["name"] == "gib"
    assert not {"initContainers", "hostNetwork", "resourceClaims"} & spec.keys()
    assert "annotations" not in pod["metadata"]
    assert "rdma/ib" not in trainer["resources"]["limits"]
    assert trainer["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_a_run_of_several_nodes_claims_a_channel_of_its_own_compute_domain(run: Any) -> None:
    multi = with_profile(run("llama3-8b-64-gpus"), compute_domain=True)
    domain = multi.build().compute_domain
    template = domain["spec"]["channel"]["resourceClaimTemplate"]["name"]
    spec = multi.pod()["spec"]
    assert spec["resourceClaims"] == [{"name": "imex-channel", "resourceClaimTemplateName": template}]
    assert spec["containers"][0]["resources"]["claims"] == [{"name": "imex-channel"}]
    assert domain["metadata"]["ownerReferences"][0]["kind"] == "MegatronRecipe"
    assert multi.build().all().index(domain) < multi.build().all().index(multi.build().job)


def test_a_run_of_one_node_needs_no_compute_domain(run: Any) -> None:
    single = with_profile(run("one-gpu"), compute_domain=True)
    assert single.build().compute_domain is None
    assert "resourceClaims" not in single.pod()["spec"]


@pytest.mark.parametrize("name", ["llama3-8b-64-gpus", "one-gpu", "tiny-gpt"])
def test_all_names_that_the_operator_uses_in_pods_are_reserved(run: Any, name: str) -> None:
    spec = run(name).pod()["spec"]
    trainer = spec["containers"][0]
    assert {volume["name"] for volume in spec["volumes"]} <= reserved_names.VOLUMES
    assert {mount["mountPath"] for mount in trainer["volumeMounts"]} <= set(reserved_names.MOUNT_PATHS)
    assert trainer["name"] in reserved_names.CONTAINERS
    assert {port["containerPort"] for port in trainer["ports"]} <= reserved_names.PORTS.keys()
    assert AcceleratorProfile().pod_template == PodTemplateOverlay(), "a profile adds nothing by default"
