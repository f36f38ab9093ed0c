"""Taints of devices of Dynamic Resource Allocation, and which devices the pods of a run use.

A pod uses a device through a ResourceClaim: its own, one of a template, or the one that the scheduler creates
for an extended resource that a DeviceClass backs.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from megatron_operator.lifecycle.object_metadata import Object

NO_SCHEDULE: Final = "NoSchedule"
NO_EXECUTE: Final = "NoExecute"
BLOCKING: Final = frozenset({NO_SCHEDULE, NO_EXECUTE})
"""Effects that keep pods from a device; any other, `None` among them, only informs."""
_SELECTED: Final = ("driver", "pool", "device")
_DEVICE: Final = "device "
_WITH_TAINT: Final = " with taint "


@dataclass(frozen=True, slots=True, order=True)
class DeviceId:
    """A device, as claims name it."""

    driver: str
    pool: str
    name: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.name}"


@dataclass(frozen=True, slots=True, order=True)
class DeviceTaint:
    """A taint of a device that keeps pods from it."""

    key: str
    value: str
    effect: str
    rule: str = ""
    """Name of the DeviceTaintRule that sets it; empty where the driver does."""

    def __str__(self) -> str:
        value = f"={self.value}" if self.value else ""
        rule = f" of DeviceTaintRule {self.rule}" if self.rule else ""
        return f"{self.key}{value}:{self.effect}{rule}"


@dataclass(frozen=True, slots=True)
class Device:
    """A device of a ResourceSlice."""

    name: str
    kind: str
    """Its attribute `type`, which separates GPUs from parts of them; empty where the driver sets none."""
    taints: tuple[DeviceTaint, ...] = ()


@dataclass(frozen=True, slots=True)
class Slice:
    """What is kept of a ResourceSlice."""

    node: str
    """Empty for devices that are not those of one node."""
    driver: str
    pool: str
    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True)
class TaintRule:
    """What is kept of a DeviceTaintRule."""

    taint: DeviceTaint
    selector: tuple[str | None, ...] | None
    """Driver, pool and device that it selects, None for all; None as a whole where it selects nothing."""

    def selects(self, device: DeviceId) -> bool:
        """Whether it taints the device."""
        if self.selector is None or self.taint.effect not in BLOCKING:
            return False
        named = (device.driver, device.pool, device.name)
        return all(wanted in (None, name) for wanted, name in zip(self.selector, named, strict=True))


@dataclass(frozen=True, slots=True)
class Allocation:
    """A device that is allocated to a claim."""

    device: DeviceId
    tolerations: tuple[Mapping[str, Any], ...] = ()

    def tolerates(self, taint: DeviceTaint) -> bool:
        """Whether the taint neither keeps pods of the claim from the device, nor ever evicts them.

        As in Kubernetes' own controller, NoExecute is tolerated only by a toleration of that effect; one for
        a number of seconds delays the eviction.
        """
        return any(_tolerates(each, taint) for each in self.tolerations)


def read_slice(obj: Object) -> Slice:
    """What is kept of a ResourceSlice."""
    spec = obj["spec"]
    devices = (
        Device(
            each["name"],
            str(((each.get("attributes") or {}).get("type") or {}).get("string") or ""),
            tuple(taint for found in each.get("taints") or () if (taint := _taint(found)).effect in BLOCKING),
        )
        for each in spec.get("devices") or ()
    )
    return Slice(spec.get("nodeName") or "", spec["driver"], spec["pool"]["name"], tuple(devices))


def read_rule(obj: Object) -> TaintRule:
    """What is kept of a DeviceTaintRule.

    One that selects by a DeviceClass or by CEL, as Kubernetes 1.34 has it, counts as selecting nothing.
    """
    spec = obj["spec"]
    selector = spec.get("deviceSelector")
    if selector is not None and selector.keys() <= set(_SELECTED):
        return TaintRule(_taint(spec["taint"], obj["metadata"]["name"]), tuple(map(selector.get, _SELECTED)))
    return TaintRule(_taint(spec["taint"], obj["metadata"]["name"]), None)


def claims_of(pod: Object) -> tuple[str, ...]:
    """Names of the pod's ResourceClaims, as far as they exist."""
    status = pod.get("status") or {}
    created = {
        each["name"]: each.get("resourceClaimName") for each in status.get("resourceClaimStatuses") or ()
    }
    names = [
        each.get("resourceClaimName") or created.get(each["name"])
        for each in (pod.get("spec") or {}).get("resourceClaims") or ()
    ]
    names.append((status.get("extendedResourceClaimStatus") or {}).get("resourceClaimName"))
    return tuple(dict.fromkeys(name for name in names if name))


def allocations(claim: Object) -> tuple[Allocation, ...]:
    """The devices that are allocated to a claim; not those that it may only monitor, by `adminAccess`."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return tuple(
        Allocation(
            DeviceId(each["driver"], each["pool"], each["device"]), tuple(each.get("tolerations") or ())
        )
        for each in (allocation.get("devices") or {}).get("results") or ()
        if not each.get("adminAccess")
    )


def signs(tainted: Mapping[DeviceId, Collection[DeviceTaint]], used: Iterable[Allocation]) -> frozenset[str]:
    """A text for each device that a run uses and may not use much longer."""
    found = {
        each.device: [taint for taint in tainted.get(each.device, ()) if not each.tolerates(taint)]
        for each in used
    }
    return frozenset(_sign(device, taints) for device, taints in found.items() if taints)


def recorded_device(recorded: str) -> DeviceId | None:
    """The device that a recorded text is about; None where that is something else, as a taint of the node."""
    device, separator, _ = recorded.removeprefix(_DEVICE).partition(_WITH_TAINT)
    if not separator or not recorded.startswith(_DEVICE):
        return None
    driver, _, rest = device.partition("/")  # Only the pool may have slashes.
    pool, _, name = rest.rpartition("/")
    return DeviceId(driver, pool, name)


def recorded_signs(tainted: Mapping[DeviceId, Collection[DeviceTaint]], recorded: str) -> frozenset[str]:
    """As `signs`, of the device that a recorded text is about: the run that left it no longer uses it."""
    device = recorded_device(recorded)
    if device is None or device not in tainted:
        return frozenset()
    return frozenset({_sign(device, tainted[device])})


def eviction_cause(node: str, tainted: Mapping[DeviceId, Collection[DeviceTaint]]) -> str | None:
    """Why a pod was evicted from a node for a device: Kubernetes' own message names neither device nor taint.

    All devices of the node with NoExecute, since the pod's claim may be gone; None where there are none.
    """
    found = {
        device: evicting
        for device, taints in tainted.items()
        if (evicting := [taint for taint in taints if taint.effect == NO_EXECUTE])
    }
    return f"evicted from {node}: {one_text(_sign(*each) for each in found.items())}" if found else None


def one_text(texts: Iterable[str]) -> str:
    """The first of texts, and how many more there are."""
    ordered = sorted(texts)
    more = len(ordered) - 1
    return ordered[0] + (f", and {more} more" if more else "")


def _sign(device: DeviceId, taints: Iterable[DeviceTaint]) -> str:
    return f"{_DEVICE}{device}{_WITH_TAINT}{one_text(map(str, taints))}"


def _taint(taint: Mapping[str, Any], rule: str = "") -> DeviceTaint:
    return DeviceTaint(taint["key"], taint.get("value") or "", taint["effect"], rule)


def _tolerates(toleration: Mapping[str, Any], taint: DeviceTaint) -> bool:
    effect, key = toleration.get("effect"), toleration.get("key")
    if taint.effect == NO_EXECUTE and (
        effect != NO_EXECUTE or toleration.get("tolerationSeconds") is not None
    ):
        return False
    if effect not in (None, "", taint.effect) or key not in (None, "", taint.key):
        return False
    return toleration.get("operator") == "Exists" or (toleration.get("value") or "") == taint.value
