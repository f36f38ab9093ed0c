"""The devices of nodes at one moment, and which of them pods may use."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from megatron_operator.lifecycle.device_capacity import DeviceKind
from megatron_operator.lifecycle.device_taints import DeviceId, DeviceTaint, Slice, TaintRule


@dataclass(frozen=True, slots=True)
class DeviceSnapshot:
    """Does not change, so that a thread may read it."""

    slices: Mapping[str, Sequence[Slice]]
    """Those of a node's own devices, by node."""
    rules: Collection[TaintRule] = ()

    def tainted(self, node: str) -> dict[DeviceId, tuple[DeviceTaint, ...]]:
        """The node's devices that are kept from pods, and their taints."""
        found: dict[DeviceId, tuple[DeviceTaint, ...]] = {}
        for each in self.slices.get(node, ()):
            for device in each.devices:
                if not (device.taints or self.rules):
                    continue
                named = DeviceId(each.driver, each.pool, device.name)
                taints = (*device.taints, *(rule.taint for rule in self.rules if rule.selects(named)))
                if taints:
                    found[named] = taints
        return found

    def kinds(self, node: str) -> dict[DeviceId, DeviceKind]:
        """All devices of a node, and their kinds."""
        return {
            DeviceId(each.driver, each.pool, device.name): (each.driver, device.kind)
            for each in self.slices.get(node, ())
            for device in each.devices
        }

    def usable(self, node: str, held: Collection[DeviceId] = ()) -> Counter[DeviceKind]:
        """Number of the node's devices that are neither tainted nor `held`, by kind."""
        tainted = self.tainted(node)
        return Counter(
            kind for device, kind in self.kinds(node).items() if device not in tainted and device not in held
        )

    def may_be_tainted(self, node: str, device: DeviceId) -> bool:
        """Whether no slice lists a device, and its taint may have lasted all the same.

        A rule selects it, or the whole pool is gone: slices are deleted while a driver is upgraded or its
        node restarts, and published again with the taints.
        """
        slices = self.slices.get(node, ())
        pool = [each for each in slices if (each.driver, each.pool) == (device.driver, device.pool)]
        if any(listed.name == device.name for each in pool for listed in each.devices):
            return False
        return not pool or any(rule.selects(device) for rule in self.rules)
