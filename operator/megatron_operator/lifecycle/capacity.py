"""How many of a run's pods fit on the nodes of the cluster, by the scheduler's rules."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from sys import intern
from typing import Any, Final

from megatron_operator.api import quantity
from megatron_operator.api.labels import LABEL_RECIPE
from megatron_operator.lifecycle.node_state import NodeState, node_of, node_state, ready_condition

Object = Mapping[str, Any]
Amounts = dict[str, Fraction]
"""Resource name -> amount in base units."""

PODS: Final = "pods"
_OF_SPEC: Final = ("containers", "initContainers", "overhead", "nodeSelector", "affinity", "tolerations")
"""What decides where a pod fits."""
_BLOCKING_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})


@dataclass(slots=True)
class ClusterUsage:
    """The nodes of a cluster and what its pods use of them: of each object only what counts."""

    nodes: list[Object] = field(default_factory=list)
    used: dict[str, Amounts] = field(default_factory=dict)
    """Requests of all pods by node."""
    trainers: dict[str, tuple[str, Amounts]] = field(default_factory=dict)
    """Node and requests of the pods of recipes, by UID."""
    waiting: dict[tuple[str, str], dict[str, Object]] = field(default_factory=dict)
    """Specs of the pods of recipes that are not bound, by namespace and recipe, and by UID."""

    def add_node(self, node: Object) -> None:
        """Add a node."""
        metadata, spec, status = (node.get(part) or {} for part in ("metadata", "spec", "status"))
        # Thousands of nodes have the same labels.
        labels = {intern(key): intern(value) for key, value in (metadata.get("labels") or {}).items()}
        self.nodes.append(
            {
                "metadata": {"name": metadata["name"], "labels": labels},
                "spec": {name: spec[name] for name in ("unschedulable", "taints") if name in spec},
                "status": {
                    "allocatable": status.get("allocatable") or {},
                    "conditions": [ready_condition(node)],
                },
            }
        )

    def missing(self, names: Collection[str]) -> frozenset[str]:
        """Those of these names that no node has."""
        return frozenset(names) - {node["metadata"]["name"] for node in self.nodes}

    def add_pod(self, pod: Object) -> None:
        """Add a pod, if it holds resources, or is one of a recipe and waits for them."""
        node_name, metadata = node_of(pod), pod["metadata"]
        phase = (pod.get("status") or {}).get("phase")
        recipe = (metadata.get("labels") or {}).get(LABEL_RECIPE)
        if phase in ("Succeeded", "Failed"):
            return
        if node_name is None:
            if recipe is not None and "deletionTimestamp" not in metadata:
                gang = self.waiting.setdefault((metadata.get("namespace", ""), recipe), {})
                gang[metadata["uid"]] = {name: pod["spec"][name] for name in _OF_SPEC if name in pod["spec"]}
            return
        requests = pod_requests(pod["spec"]) | {PODS: Fraction(1)}
        _add(self.used.setdefault(node_name, {}), requests)
        if recipe is not None:
            self.trainers[metadata["uid"]] = node_name, requests

    def used_by_others(self, uids: Collection[str]) -> dict[str, Amounts]:
        """Requests by node without those of these pods of recipes."""
        used = dict(self.used)
        for node_name, requests in (self.trainers[uid] for uid in uids if uid in self.trainers):
            used[node_name] = {n: used[node_name][n] - requests.get(n, 0) for n in used[node_name]}
        return used


def places(cluster: ClusterUsage, template: Object) -> dict[str, int]:
    """Number of pods that fit each node, as `fitting_pods` counts them, if nothing else ran there."""
    return fitting_pods(ClusterUsage(cluster.nodes), template, ())


def fitting_pods(cluster: ClusterUsage, template: Object, own_uids: Collection[str]) -> dict[str, int]:
    """Node name -> number of pods made from `template` that fit, counting the run's own pods as free.

    Nodes that are not ready, cordoned, tainted or excluded by selector or affinity are left out. Volumes,
    anti-affinity and queue quotas are not considered.
    """
    spec = template["spec"]
    requested = pod_requests(spec) | {PODS: Fraction(1)}
    used = cluster.used_by_others(own_uids)
    fits = {}
    for node in cluster.nodes:
        name = node["metadata"]["name"]
        if _is_schedulable(node, spec):
            count = _count(_allocatable(node), used.get(name, {}), requested)
            if count > 0:
                fits[name] = count
    return fits


def claimed_by_others(cluster: ClusterUsage, fits: Mapping[str, int], own_uids: Collection[str]) -> int:
    """How many of the pods in `fits` other runs would take, if this run gave its places up.

    Those are the waiting pods of each run that fit as a whole: a gang that does not is not bound either way.

    Args:
        cluster: All nodes and pods.
        fits: Number of pods of this run that fit on each node, with its own counted as free.
        own_uids: The run's own pods.
    """
    claimed = 0
    for gang in cluster.waiting.values():
        if not gang.keys().isdisjoint(own_uids):
            continue
        spec = next(iter(gang.values()))
        places = fitting_pods(cluster, {"spec": spec}, own_uids)
        if sum(places.values()) >= len(gang):
            shared = sum(min(count, fits.get(node, 0)) for node, count in places.items())
            claimed += min(len(gang), shared)
    return claimed


def pod_requests(spec: Object) -> Amounts:
    """A pod's requests as the scheduler counts them.

    The sum over its containers, or the largest init container if that is more, plus sidecars and overhead
    (https://kubernetes.io/docs/concepts/workloads/pods/init-containers/#resource-sharing-within-containers).
    """
    total: Amounts = {}
    for container in spec.get("containers") or []:
        _add(total, _container_requests(container))
    for container in spec.get("initContainers") or []:
        for name, amount in _container_requests(container).items():
            sidecar = container.get("restartPolicy") == "Always"
            before = total.get(name, Fraction(0))
            total[name] = before + amount if sidecar else max(before, amount)
    _add(total, _amounts(spec.get("overhead") or {}))
    return total


def _container_requests(container: Object) -> Amounts:
    resources = container.get("resources") or {}
    return _amounts((resources.get("limits") or {}) | (resources.get("requests") or {}))


def _amounts(quantities: Mapping[str, Any]) -> Amounts:
    return {name: quantity.parse(str(amount)) for name, amount in quantities.items()}


def _add(total: Amounts, more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Fraction(0)) + amount


def _allocatable(node: Object) -> Amounts:
    return _amounts((node.get("status") or {}).get("allocatable") or {})


def _count(allocatable: Amounts, used: Amounts, requested: Amounts) -> int:
    none = Fraction(0)
    return int(
        min(
            (allocatable.get(name, none) - used.get(name, none)) // amount
            for name, amount in requested.items()
            if amount > 0
        )
    )


def _is_schedulable(node: Object, spec: Object) -> bool:
    if node_state(node) is not NodeState.READY or (node.get("spec") or {}).get("unschedulable"):
        return False
    tolerations = spec.get("tolerations") or []
    for taint in (node.get("spec") or {}).get("taints") or []:
        blocking = taint.get("effect") in _BLOCKING_EFFECTS
        if blocking and not any(_tolerates(each, taint) for each in tolerations):
            return False
    selector = spec.get("nodeSelector") or {}
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    terms = (affinity or {}).get("nodeSelectorTerms") or []
    return not terms or any(_matches(term, labels) for term in terms)


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint.get("key"))
    same_key = toleration.get("key") == taint.get("key")
    return same_key and (toleration.get("value") or "") == (taint.get("value") or "")


def _matches(term: Object, labels: Mapping[str, str]) -> bool:
    """Supports the operators that this operator's templates use; a term with any other matches nothing."""
    if term.get("matchFields"):
        return False
    for each in term.get("matchExpressions") or []:
        value, values = labels.get(each["key"]), each.get("values") or []
        match each["operator"]:
            case "In":
                holds = value in values
            case "NotIn":
                holds = value not in values
            case _:
                holds = False
        if not holds:
            return False
    return True
