"""Devices of Dynamic Resource Allocation on simulated nodes, with the real scheduler and its claims."""

from testkit.api_server import Api, Object
from tests.control_plane.nodes import Pool

DRIVER = "gpu.example.com"
CLASS = "example-gpus"
RESOURCE = "example.com/gpu"
"""Extended resource that the class backs; no node has it."""
TEMPLATE = "gpus"
"""ResourceClaimTemplate of the test's namespace."""
_GROUP = "resource.k8s.io"


class Devices:
    """A device for each node of a pool, as their driver publishes them."""

    def __init__(self, api: Api, pool: Pool) -> None:
        self.api = api
        self.pool = pool
        self._rules: list[str] = []
        selector = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "gpu"'
        spec = {"selectors": [{"cel": {"expression": selector}}], "extendedResourceName": RESOURCE}
        api.apply(_object("v1", "DeviceClass", CLASS, spec))
        for node in pool.nodes:
            self.publish(node)

    def publish(self, node: str, *taints: Object) -> None:
        """Publish a node's device with these taints."""
        device: Object = {"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}}
        if taints:
            device["taints"] = list(taints)
        spec = {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [device],
        }
        self.api.apply(_object("v1", "ResourceSlice", _slice(node), spec))

    def taint_by_rule(self, name: str, node: str, taint: Object) -> None:
        """Taint a node's device as an administrator does."""
        spec = {"deviceSelector": {"driver": DRIVER, "pool": node, "device": "gpu-0"}, "taint": taint}
        self._rules.append(name)
        self.api.apply(_object("v1beta2", "DeviceTaintRule", name, spec))

    def claim_template(self, namespace: str) -> None:
        """Create the template of the claims of a namespace's pods: a device for each pod."""
        request = {"name": "gpu", "exactly": {"deviceClassName": CLASS}}
        body = _object(
            "v1", "ResourceClaimTemplate", TEMPLATE, {"spec": {"devices": {"requests": [request]}}}
        )
        self.api.apply(body | {"metadata": {"name": TEMPLATE, "namespace": namespace}})

    def delete(self) -> None:
        """Delete all but what is in a namespace."""
        for rule in self._rules:
            self.api.delete("DeviceTaintRule", None, rule)
        for node in self.pool.nodes:
            self.api.delete("ResourceSlice", None, _slice(node))
        self.api.delete("DeviceClass", None, CLASS)


def device(node: str) -> str:
    """The name of a node's device in messages."""
    return f"device {DRIVER}/{node}/gpu-0"


def _slice(node: str) -> str:
    return f"{node}-{DRIVER}"


def _object(version: str, kind: str, name: str, spec: Object) -> Object:
    return {"apiVersion": f"{_GROUP}/{version}", "kind": kind, "metadata": {"name": name}, "spec": spec}
