"""Kueue's objects: a LocalQueue with a ClusterQueue and a ResourceFlavor of its own."""

from collections.abc import Mapping

from testkit.api_server import Api, Object

API_VERSION = "kueue.x-k8s.io/v1beta2"
GPU = "nvidia.com/gpu"


def cluster_wide(kind: str, name: str, spec: Object) -> Object:
    """A cluster-wide object of Kueue."""
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def cluster_queue(name: str, quotas: Mapping[str, str]) -> Object:
    """A ClusterQueue for all namespaces with these quotas of the ResourceFlavor of its name.

    Workloads of higher priority preempt.
    """
    resources = [{"name": each, "nominalQuota": quota} for each, quota in quotas.items()]
    flavors = [{"name": name, "resources": resources}]
    spec: Object = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": list(quotas), "flavors": flavors}],
    }
    return cluster_wide("ClusterQueue", name, spec)


def local_queue(name: str, namespace: str, of: str) -> Object:
    """The LocalQueue through which a namespace uses the ClusterQueue `of`."""
    metadata = {"name": name, "namespace": namespace}
    spec = {"clusterQueue": of}
    return {"apiVersion": API_VERSION, "kind": "LocalQueue", "metadata": metadata, "spec": spec}


def is_active(api: Api, name: str, namespace: str) -> bool:
    """Whether Kueue admits workloads of this LocalQueue."""
    status = api.get("LocalQueue", namespace, name).get("status") or {}
    return ("Active", "True") in {(c["type"], c["status"]) for c in status.get("conditions") or []}
