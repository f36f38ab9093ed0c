"""Which devices of a node pods may use, and whether one that no slice lists may be tainted."""

from megatron_operator.lifecycle.device_snapshot import DeviceSnapshot
from megatron_operator.lifecycle.device_taints import Device, DeviceId, DeviceTaint, Slice, TaintRule

GPU, OTHER = DeviceId("gpu.nvidia.com", "node-1", "gpu-3"), DeviceId("gpu.nvidia.com", "node-1", "gpu-4")
KIND = ("gpu.nvidia.com", "gpu")
DRAIN = TaintRule(DeviceTaint("drain", "", "NoExecute", "rule"), (None, "node-1", "gpu-3"))


def slices(*devices: str, pool: str = "node-1") -> dict[str, list[Slice]]:
    found = tuple(Device(each, "gpu") for each in devices)
    return {"node-1": [Slice("node-1", "gpu.nvidia.com", pool, found)]}


def test_devices_that_are_tainted_or_held_are_not_usable() -> None:
    devices = DeviceSnapshot(slices("gpu-3", "gpu-4", "gpu-5"), [DRAIN])
    assert devices.usable("node-1") == {KIND: 2}
    assert devices.usable("node-1", {GPU, OTHER}) == {KIND: 1}
    assert devices.usable("node-2") == {}


def test_a_device_may_be_tainted_while_a_rule_selects_it_or_its_pool_is_not_published() -> None:
    assert DeviceSnapshot({}).may_be_tainted("node-1", GPU)
    assert DeviceSnapshot(slices("gpu-3", pool="nics")).may_be_tainted("node-1", GPU)
    assert DeviceSnapshot(slices("gpu-4"), [DRAIN]).may_be_tainted("node-1", GPU)
    assert not DeviceSnapshot(slices("gpu-4")).may_be_tainted("node-1", GPU), "it was taken away"
    assert not DeviceSnapshot(slices("gpu-3")).may_be_tainted("node-1", GPU), "its taints are known"
