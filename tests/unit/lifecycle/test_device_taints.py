"""Which taints of devices concern a run, and how they are named."""

from typing import Any

import pytest
from megatron_operator.api.platform import Maintenance
from megatron_operator.lifecycle.device_taints import (
    Allocation,
    DeviceId,
    DeviceTaint,
    allocations,
    claims_of,
    eviction_cause,
    read_rule,
    read_slice,
    recorded_device,
    recorded_signs,
    signs,
)
from megatron_operator.lifecycle.maintenance import maintenance_sign
from megatron_operator.lifecycle.node_state import NodeState, NodeStatus

GPU, OTHER = DeviceId("gpu.nvidia.com", "node-1", "gpu-3"), DeviceId("gpu.nvidia.com", "node-1", "gpu-4")
XID = DeviceTaint("gpu.nvidia.com/xid", "79", "NoSchedule")
DRAIN = DeviceTaint("example.com/drain", "", "NoExecute", "rack-7")
SIGN = "device gpu.nvidia.com/node-1/gpu-3 with taint gpu.nvidia.com/xid=79:NoSchedule"


def allocation(*tolerations: dict[str, Any], device: DeviceId = GPU) -> Allocation:
    return Allocation(device, tolerations)


def test_a_sign_names_device_key_value_effect_and_rule() -> None:
    assert signs({GPU: (XID,)}, [allocation()]) == {SIGN}
    assert signs({GPU: (DRAIN,)}, [allocation()]) == {
        "device gpu.nvidia.com/node-1/gpu-3 with taint example.com/drain:NoExecute of DeviceTaintRule rack-7"
    }


def test_devices_that_the_run_does_not_use_are_no_sign() -> None:
    assert signs({GPU: (XID,)}, [allocation(device=OTHER)]) == frozenset()


@pytest.mark.parametrize(
    ("toleration", "taint", "tolerated"),
    [
        ({"operator": "Exists"}, XID, True),
        ({"key": XID.key, "operator": "Equal", "value": "79"}, XID, True),
        ({"key": XID.key, "value": "79", "effect": "NoSchedule"}, XID, True),
        ({"key": XID.key, "value": "48"}, XID, False),
        ({"key": "other", "operator": "Exists"}, XID, False),
        ({"operator": "Exists", "effect": "NoExecute"}, XID, False),
        ({"operator": "Exists", "effect": "NoExecute"}, DRAIN, True),
        ({"operator": "Exists"}, DRAIN, False),
        ({"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 600}, DRAIN, False),
    ],
)
def test_a_taint_that_the_claim_tolerates_is_no_sign_and_one_for_some_time_is(
    toleration: dict[str, Any], taint: DeviceTaint, tolerated: bool
) -> None:
    assert (signs({GPU: (taint,)}, [allocation(toleration)]) == frozenset()) is tolerated


def test_taints_that_only_inform_are_not_kept() -> None:
    taints = [{"key": "a", "effect": effect} for effect in ("None", "NoSchedule", "NoExecute", "Later")]
    device = {"name": "gpu-3", "attributes": {"type": {"string": "gpu"}}, "taints": taints}
    spec = {"driver": "d", "nodeName": "n", "pool": {"name": "p"}, "devices": [device, {"name": "gpu-4"}]}
    found = read_slice({"metadata": {"name": "s"}, "spec": spec})
    assert [(each.name, each.kind) for each in found.devices] == [("gpu-3", "gpu"), ("gpu-4", "")]
    assert [[taint.effect for taint in each.taints] for each in found.devices] == [
        ["NoSchedule", "NoExecute"],
        [],
    ]


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ({"driver": GPU.driver}, {GPU, OTHER}),
        ({"pool": "node-1", "device": "gpu-3"}, {GPU}),
        ({}, {GPU, OTHER}),
        (None, set()),
        ({"driver": "other"}, set()),
        ({"deviceClassName": "gpus"}, set()),
    ],
)
def test_a_rule_taints_the_devices_that_it_selects(selector: Any, selected: set[DeviceId]) -> None:
    spec: dict[str, Any] = {"taint": {"key": "a", "effect": "NoSchedule"}}
    spec |= {} if selector is None else {"deviceSelector": selector}
    rule = read_rule({"metadata": {"name": "rule"}, "spec": spec})
    assert {each for each in (GPU, OTHER) if rule.selects(each)} == selected


def test_a_rule_without_an_effect_taints_nothing() -> None:
    spec = {"taint": {"key": "a", "effect": "None"}, "deviceSelector": {}}
    assert not read_rule({"metadata": {"name": "rule"}, "spec": spec}).selects(GPU)


def test_the_claims_of_a_pod_are_its_own_those_of_templates_and_that_of_extended_resources() -> None:
    pod = {
        "spec": {
            "resourceClaims": [
                {"name": "own", "resourceClaimName": "shared"},
                {"name": "nics", "resourceClaimTemplateName": "nics"},
                {"name": "late", "resourceClaimTemplateName": "late"},
            ]
        },
        "status": {
            "resourceClaimStatuses": [{"name": "nics", "resourceClaimName": "run-nics-x"}, {"name": "late"}],
            "extendedResourceClaimStatus": {"resourceClaimName": "run-extended", "requestMappings": []},
        },
    }
    assert claims_of(pod) == ("shared", "run-nics-x", "run-extended")
    assert claims_of({"spec": {}}) == ()


def test_the_devices_of_a_claim_have_the_tolerations_of_their_requests() -> None:
    result = {"request": "gpu", "driver": GPU.driver, "pool": GPU.pool, "device": GPU.name}
    claim = {"status": {"allocation": {"devices": {"results": [result | {"tolerations": [{"key": "a"}]}]}}}}
    assert allocations(claim) == (allocation({"key": "a"}),)
    assert allocations({}) == ()


def test_devices_that_a_claim_may_only_monitor_are_not_used() -> None:
    result = {"request": "all", "driver": GPU.driver, "pool": GPU.pool, "device": GPU.name}
    results = [result | {"adminAccess": True}, result | {"device": OTHER.name, "adminAccess": False}]
    claim = {"status": {"allocation": {"devices": {"results": results}}}}
    assert [each.device for each in allocations(claim)] == [OTHER]


def test_the_device_of_a_recorded_text_is_found_also_in_a_pool_with_slashes() -> None:
    device = DeviceId("gpu.nvidia.com", "rack-1/node-1", "gpu-3")
    [text] = signs({device: (DRAIN,)}, [allocation(device=device)])
    assert recorded_device(f"{text}, and 2 more") == device
    assert recorded_device("node taint device with taint x") is None


def test_a_run_that_left_a_device_remembers_it_and_no_other() -> None:
    escalated = DeviceTaint(XID.key, "79", "NoExecute")
    [again] = recorded_signs({GPU: (escalated,), OTHER: (XID,)}, SIGN)
    assert "gpu-3 with taint gpu.nvidia.com/xid=79:NoExecute" in again
    assert recorded_signs({OTHER: (XID,)}, SIGN) == frozenset()
    assert recorded_signs({GPU: (XID,)}, "node taint karpenter.sh/disrupted") == frozenset()


def test_the_cause_of_an_eviction_names_what_evicts() -> None:
    assert eviction_cause("node-1", {GPU: (XID, DRAIN), OTHER: (XID,)}) == (
        "evicted from node-1: device gpu.nvidia.com/node-1/gpu-3 with taint example.com/drain:NoExecute "
        "of DeviceTaintRule rack-7"
    )
    assert eviction_cause("node-1", {GPU: (XID,)}) is None


def test_a_node_with_a_tainted_device_announces_maintenance_unless_the_platform_turns_that_off() -> None:
    node = NodeStatus(NodeState.READY, devices=frozenset({"device b", "device a", "device c"}))
    assert maintenance_sign(node, Maintenance(), 0.0) == "device a, and 2 more"
    assert maintenance_sign(node, Maintenance(device_taints=False), 0.0) is None
