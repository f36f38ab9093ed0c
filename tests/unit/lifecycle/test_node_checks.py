"""Which cordoned nodes are checked, and what a check shows."""

import json
from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.labels import ANNOTATION_NODE_CHECK, LABEL_CORDONED_AT
from megatron_operator.api.platform import AcceleratorProfile, BadNodes, PlatformConfig
from megatron_operator.api.platform_validation import parse_platform
from megatron_operator.api.pod_template import PodResourceClaim, PodTemplateOverlay
from megatron_operator.lifecycle.node_checks import is_due, passed_patch, profile_of, result
from megatron_operator.manifests import node_check

from tests.unit.lifecycle.test_cordoning import NOW, cordoned, node

RULES = BadNodes(cordon=True, uncordon_by_check=True)
HOUR, DAY = 3600.0, 86400.0


def failed_device(at: float = NOW - HOUR, known: dict[str, Any] | None = None, **conditions: str) -> Any:
    """A node that was cordoned for a device, with the record of an earlier check."""
    found = cordoned("DeviceMemory", node(**conditions), at)
    found["metadata"]["annotations"][ANNOTATION_NODE_CHECK] = json.dumps(known or {})
    return found


def test_a_node_is_checked_an_hour_after_it_was_cordoned_and_each_hour_after() -> None:
    assert not is_due(failed_device(NOW - HOUR + 1), RULES, NOW)
    assert is_due(failed_device(NOW - HOUR), RULES, NOW)
    assert not is_due(failed_device(NOW - 9 * HOUR, {"started": int(NOW - HOUR + 1)}), RULES, NOW)
    assert is_due(failed_device(NOW - 9 * HOUR, {"started": int(NOW - HOUR)}), RULES, NOW)


@pytest.mark.parametrize("evidence", ["NodeCondition", "NodeTaint", "NodeLost"])
def test_a_node_whose_evidence_ends_by_itself_is_not_checked(evidence: str) -> None:
    assert not is_due(cordoned(evidence, at=NOW - 2 * HOUR), RULES, NOW)


def test_a_node_that_is_not_ready_or_still_shows_failed_hardware_is_not_checked() -> None:
    assert not is_due(failed_device(ready="False"), RULES, NOW)
    assert not is_due(failed_device(GPUXIDErrors="True"), RULES, NOW)


def test_a_node_that_the_operator_did_not_cordon_is_not_checked() -> None:
    theirs = failed_device()
    del theirs["metadata"]["labels"][LABEL_CORDONED_AT]
    uncordoned = failed_device()
    uncordoned["spec"] = {}
    forged = failed_device()
    forged["metadata"]["annotations"] = {}
    assert not any(is_due(each, RULES, NOW) for each in (theirs, uncordoned, forged))


def test_a_node_that_passed_and_failed_again_within_a_day_is_left_to_a_person() -> None:
    assert not is_due(failed_device(NOW - HOUR, {"passed": int(NOW - HOUR - DAY + 1)}), RULES, NOW)
    assert is_due(failed_device(NOW - HOUR, {"passed": int(NOW - HOUR - DAY)}), RULES, NOW)


@pytest.mark.parametrize("text", ["[]", "{", '{"started": "soon"}', '{"passed": 1e999}', '{"started": -1}'])
def test_a_record_that_somebody_has_changed_is_no_error(text: str) -> None:
    found = failed_device()
    found["metadata"]["annotations"][ANNOTATION_NODE_CHECK] = text
    assert is_due(found, RULES, NOW)


def test_a_node_that_passed_is_uncordoned_with_the_time() -> None:
    patch = passed_patch(failed_device(known={"started": 17}), NOW)
    assert patch["spec"] == {"unschedulable": None}
    assert patch["metadata"]["labels"] == {LABEL_CORDONED_AT: None}
    record = json.loads(patch["metadata"]["annotations"][ANNOTATION_NODE_CHECK])
    assert record == {"started": 17, "result": "passed", "passed": int(NOW)}


def test_the_profile_of_a_node_is_the_one_with_most_of_its_labels_and_its_devices() -> None:
    h100, h100_big = (
        AcceleratorProfile(node_labels={"gpu": "h100"}),
        AcceleratorProfile(node_labels={"gpu": "h100", "size": "big"}),
    )
    other = AcceleratorProfile(node_labels={"gpu": "b200"})
    platform = PlatformConfig(accelerators={"a": h100, "b": h100_big, "c": other})
    found = node()
    found["metadata"]["labels"] = {"gpu": "h100", "size": "big"}
    assert profile_of(found, platform) is None, "it has no GPUs"
    found["status"]["capacity"] = {"nvidia.com/gpu": "8"}
    assert profile_of(found, platform) is h100_big
    found["metadata"]["labels"] = {"gpu": "h100"}
    assert profile_of(found, platform) is h100


def test_a_node_without_labels_of_a_profile_is_not_taken_for_one_without_accelerators() -> None:
    cpu = AcceleratorProfile(platform="cpu", resource_name=None)
    assert profile_of(node(), PlatformConfig(accelerators={"cpu": cpu})) is None


def test_checks_without_cordons_are_refused() -> None:
    with pytest.raises(InvalidRecipeError, match=r"badNodes\.uncordonByCheck.*badNodes\.cordon is false"):
        parse_platform({"badNodes": {"uncordonByCheck": True}}, "platform")


def job(**changes: Any) -> Any:
    found = failed_device()
    found["metadata"]["uid"] = "node-uid"
    platform = PlatformConfig(image="registry.example/trainer:1", image_pull_secrets=["pull"])
    profile = AcceleratorProfile(per_node=4, env={"NCCL_SOCKET_IFNAME": "eth0"}, **changes)
    made = node_check.job(found, "megatron-system", platform, profile)
    assert made is not None
    return made


def test_the_check_has_the_whole_node_no_token_and_an_end() -> None:
    made = job()
    spec = made["spec"]["template"]["spec"]
    [container] = spec["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    assert container["command"] == ["megatron-check-node", "--devices=4"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert "serviceAccountName" not in spec
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    assert (made["spec"]["activeDeadlineSeconds"], made["spec"]["backoffLimit"]) == (600, 0)
    [owner] = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Node", "node-uid")


def test_the_check_runs_on_that_node_alone_and_tolerates_its_cordon_but_no_sign_of_failed_hardware() -> None:
    spec = job()["spec"]["template"]["spec"]
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [term] = required["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}
    assert [each["key"] for each in spec["tolerations"]] == ["node.kubernetes.io/unschedulable"]


def test_the_check_has_the_claims_of_a_profile_without_an_extended_resource() -> None:
    claims = [PodResourceClaim(name="gpus", resource_claim_template_name="whole-node")]
    overlay = PodTemplateOverlay(resource_claims=claims, annotations={"fabric": "rail-0"})
    spec = job(resource_name=None, pod_template=overlay)["spec"]["template"]["spec"]
    assert spec["resourceClaims"] == [{"name": "gpus", "resourceClaimTemplateName": "whole-node"}]
    assert spec["containers"][0]["resources"]["claims"] == [{"name": "gpus"}]
    assert "resourceClaims" not in job(pod_template=overlay)["spec"]["template"]["spec"]


def test_without_an_image_of_the_platform_there_is_no_check() -> None:
    assert node_check.job(failed_device(), "megatron-system", PlatformConfig(), AcceleratorProfile()) is None


def test_a_check_passes_only_when_its_job_is_complete() -> None:
    def ended(kind: str, status: str = "True") -> Any:
        condition = {"type": kind, "status": status, "reason": "DeadlineExceeded", "message": "too late"}
        return {"status": {"conditions": [condition]}}

    assert result({"status": {}}) is None
    assert result(ended("Complete", "False")) is None
    assert result(ended("SuccessCriteriaMet")) is None
    assert result(ended("Complete")) == (True, "passed")
    assert result(ended("Failed")) == (False, "DeadlineExceeded: too late")
