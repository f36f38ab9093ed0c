"""How many pods have devices, and which extended resources devices back."""

from typing import Any

import pytest
from megatron_operator.lifecycle.capacity import ClusterUsage, fitting_pods
from megatron_operator.lifecycle.device_capacity import backed_amounts, extended_resources, limited

GPU, PART, NIC = ("gpu.nvidia.com", "gpu"), ("gpu.nvidia.com", "mig"), ("nic.example.com", "")
NVIDIA = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"
IMPLICIT = "deviceclass.resource.kubernetes.io/gpus"


def device_class(*expressions: str, resource: str | None = "nvidia.com/gpu") -> dict[str, Any]:
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": each}} for each in expressions]}
    return {
        "metadata": {"name": "gpus"},
        "spec": spec | ({"extendedResourceName": resource} if resource else {}),
    }


@pytest.mark.parametrize(
    ("found", "selected"),
    [
        (device_class(NVIDIA), ("gpu.nvidia.com", "gpu")),
        (device_class(*NVIDIA.split(" && ")), ("gpu.nvidia.com", "gpu")),
        (device_class('(device.driver == "gpu.amd.com")'), ("gpu.amd.com", None)),
        (device_class(NVIDIA + " && device.capacity['gpu.nvidia.com'].memory.isGreaterThan(1)"), None),
        (device_class(NVIDIA.replace("&&", "||")), None),
        (device_class(), None),
    ],
)
def test_a_class_backs_its_resource_where_its_selectors_are_understood(found: Any, selected: Any) -> None:
    expected = {} if selected is None else {"nvidia.com/gpu": selected, IMPLICIT: selected}
    assert extended_resources([found]) == expected


def test_each_class_has_a_resource_of_its_own_name() -> None:
    assert extended_resources([device_class(NVIDIA, resource=None)]).keys() == {IMPLICIT}


def test_devices_of_a_class_are_counted_by_driver_and_type() -> None:
    resources = {"nvidia.com/gpu": GPU, "any": (GPU[0], None), "none": ("gpu.amd.com", None)}
    assert backed_amounts({GPU: 8, PART: 2, NIC: 1}, resources) == {"nvidia.com/gpu": "8", "any": "10"}


def test_pods_fit_only_where_all_their_devices_are_free() -> None:
    usable = {"a": {GPU: 8, NIC: 1}, "b": {GPU: 8}, "c": {GPU: 7, NIC: 1}}
    assert limited(dict.fromkeys("abcd", 3), {GPU: 8, NIC: 1}, usable) == {"a": 1}
    assert limited({"a": 1}, {GPU: 2}, usable) == {"a": 1}, "never more than other resources allow"


def test_a_node_without_the_resource_has_as_much_of_it_as_its_devices_back() -> None:
    template = {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}]}}
    cluster = ClusterUsage()
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    for name, own in (("a", {}), ("b", {"nvidia.com/gpu": "0"}), ("c", {"nvidia.com/gpu": "4"}), ("d", {})):
        node = {"metadata": {"name": name}, "status": ready | {"allocatable": {"pods": "9", **own}}}
        cluster.add_node(node, None if name == "d" else {"nvidia.com/gpu": "16"})
    assert fitting_pods(cluster, template, ()) == {"a": 2, "b": 2}
