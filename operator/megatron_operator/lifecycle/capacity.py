"""How many of a run's pods fit on the nodes of the cluster, by the scheduler's rules."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from sys import intern
from typing import Any, Final

from megatron_operator.api import quantity
from megatron_operator.api.labels import LABEL_RECIPE, LABEL_ROLE
from megatron_operator.api.times import seconds
from megatron_operator.lifecycle.node_state import (
    BLOCKING_EFFECTS,
    NodeState,
    node_of,
    node_state,
    ready_condition,
)
from megatron_operator.lifecycle.topology_domains import (
    Domain,
    domains_of,
    in_domains,
    in_one_domain,
    required_keys,
)
from megatron_operator.manifests.metadata import ROLE_TRAINER

Object = Mapping[str, Any]
Amounts = dict[str, int]
"""Resource name -> amount in billionths of its unit, the smallest that a quantity can state.

Integers, because each run that looks for room goes through all nodes, and fractions take four times as long.
"""

PODS: Final = "pods"
LONGEST_CLAIM: Final = 1800.0
"""Seconds after the creation of its newest pod for which a waiting gang claims places.

A gang that fits is bound within minutes. One that is not has a reason that is not seen here, such as a
volume or a quota, and would keep an elastic run small for as long as it waits.
"""
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(slots=True)
class WaitingGang:
    """The trainer pods of a recipe that are not bound; all are made from one template."""

    requests: Amounts
    placement: Object
    """Node selector, required affinity to nodes and to the gang, and tolerations, as in a pod's spec."""
    uids: set[str] = field(default_factory=set)
    newest: float = 0.0
    """When its newest pod was created, seconds since the epoch."""

    def spec(self) -> str:
        """The same text for gangs whose pods fit the same nodes."""
        return json.dumps([self.placement, {n: str(a) for n, a in self.requests.items()}], sort_keys=True)


@dataclass(slots=True)
class ClusterUsage:
    """The nodes of a cluster and what its pods use of them: of each object only what counts."""

    nodes: list[Object] = field(default_factory=list)
    used: dict[str, Amounts] = field(default_factory=dict)
    """Requests of all pods by node."""
    trainers: dict[str, tuple[str, Amounts]] = field(default_factory=dict)
    """Node and requests of the pods of recipes, by UID."""
    bound: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """UIDs of the trainers that have a node, by namespace and recipe."""
    waiting: dict[tuple[str, str], WaitingGang] = field(default_factory=dict)
    """Gangs of trainers that are not bound, by namespace and recipe."""

    def add_node(self, node: Object, backed: Mapping[str, str] | None = None) -> None:
        """Add a node. `backed`: extended resources that only its devices have, as quantities."""
        metadata, spec, status = (node.get(part) or {} for part in ("metadata", "spec", "status"))
        # Thousands of nodes have the same labels.
        labels = {intern(key): intern(value) for key, value in (metadata.get("labels") or {}).items()}
        self.nodes.append(
            {
                "metadata": {"name": metadata["name"], "labels": labels},
                "spec": {name: spec[name] for name in ("unschedulable", "taints") if name in spec},
                "status": {
                    "allocatable": _with_backed(status.get("allocatable") or {}, backed),
                    "conditions": [ready_condition(node)],
                },
            }
        )

    def missing(self, names: Collection[str]) -> frozenset[str]:
        """Those of these names that no node has."""
        return frozenset(names) - {node["metadata"]["name"] for node in self.nodes}

    def add_pod(self, pod: Object) -> None:
        """Add a pod, if it holds resources, or is a trainer and waits for them."""
        node_name, metadata = node_of(pod), pod["metadata"]
        phase = (pod.get("status") or {}).get("phase")
        labels = metadata.get("labels") or {}
        recipe = labels.get(LABEL_RECIPE)
        if phase in ("Succeeded", "Failed"):
            return
        trains = recipe is not None and labels.get(LABEL_ROLE) == ROLE_TRAINER
        run = (metadata.get("namespace", ""), str(recipe)) if trains else None
        if node_name is None:
            if run is not None and "deletionTimestamp" not in metadata:
                self._add_waiting(run, metadata, pod["spec"])
            return
        if run is not None:
            self.bound.setdefault(run, set()).add(metadata["uid"])
        requests = _requests_and_pod(pod["spec"])
        _add(self.used.setdefault(node_name, {}), requests)
        if recipe is not None:
            self.trainers[metadata["uid"]] = node_name, requests

    def _add_waiting(self, key: tuple[str, str], metadata: Object, spec: Object) -> None:
        gang = self.waiting.get(key)
        if gang is None:
            gang = self.waiting[key] = WaitingGang(_requests_and_pod(spec), _placement(spec))
        gang.uids.add(metadata["uid"])
        gang.newest = max(gang.newest, seconds(metadata.get("creationTimestamp")) or 0.0)

    def pods_of(self, run: tuple[str, str]) -> frozenset[str]:
        """UIDs of a run's trainers, bound or not; `run` is namespace and recipe."""
        waiting = self.waiting.get(run)
        return frozenset(self.bound.get(run, ())).union(() if waiting is None else waiting.uids)

    def nodes_of(self, run: tuple[str, str]) -> frozenset[str]:
        """Names of the nodes that a run's trainers are bound to."""
        return frozenset(self.trainers[uid][0] for uid in self.bound.get(run, ()))

    def used_by_others(self, uids: Collection[str]) -> dict[str, Amounts]:
        """Requests by node without those of these pods of recipes."""
        used = dict(self.used)
        for node_name, requests in (self.trainers[uid] for uid in uids if uid in self.trainers):
            used[node_name] = {n: used[node_name][n] - requests.get(n, 0) for n in used[node_name]}
        return used


def missing_gang(
    cluster: ClusterUsage,
    run: tuple[str, str],
    template: Object,
    pods: int,
    now: float,
    leaving: frozenset[str] = frozenset(),
) -> WaitingGang | None:
    """Those of a run's `pods` pods that the cluster does not have yet; none if it has all.

    `run`: namespace and recipe. `now`: seconds since the epoch. `leaving`: UIDs of pods that do not count.
    """
    present = len(cluster.pods_of(run) - leaving)
    missing = {f"{'/'.join(run)}/{number}" for number in range(pods - present)}
    spec = template["spec"]
    return WaitingGang(_requests_and_pod(spec), _placement(spec), missing, now) if missing else None


def places(cluster: ClusterUsage, template: Object) -> dict[str, int]:
    """Number of pods that fit each node, as `fitting_pods` counts them, if nothing else ran there."""
    return fitting_pods(ClusterUsage(cluster.nodes), template, ())


def fitting_pods(cluster: ClusterUsage, template: Object, own_uids: Collection[str]) -> dict[str, int]:
    """Node name -> number of pods made from `template` that fit, counting the run's own pods as free.

    Nodes that are not ready, cordoned, tainted or excluded by selector or affinity are left out. Volumes,
    anti-affinity and queue quotas are not considered. `usable_by_gang` considers required pod affinity.
    """
    spec = template["spec"]
    return _fitting(cluster.nodes, cluster.used_by_others(own_uids), spec, _requests_and_pod(spec))


def usable_by_gang(
    cluster: ClusterUsage, template: Object, fits: Mapping[str, int], placed: Collection[str] = ()
) -> dict[str, int]:
    """The part of `fits` that one gang of pods made from `template` can use, as `in_one_domain` has it."""
    return in_one_domain(cluster.nodes, required_keys(template["spec"]), fits, placed)


def claimed_by_others(
    cluster: ClusterUsage,
    template: Object,
    fits: Mapping[str, int],
    own_uids: Collection[str],
    now: float,
    expected: Iterable[WaitingGang] = (),
) -> int:
    """How many of the pods in `fits` other runs would take, if this run gave its places up.

    Those are the waiting trainers of each run that request the same accelerators and fit as a whole: a gang
    that does not is not bound either way. One that has waited for `LONGEST_CLAIM` is not expected to be.
    Those that must share a topology domain with pods of their run that are bound take places there alone.
    `expected` are gangs that the cluster does not have yet.

    Args:
        cluster: All nodes and pods.
        template: The pod template of this run.
        fits: Number of pods of this run that fit on each node, with its own counted as free.
        own_uids: The run's own pods.
        now: Seconds since the epoch.
    """
    accelerators = _extended(pod_requests(template["spec"]))
    labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in cluster.nodes}
    gangs_by_spec: dict[tuple[str, frozenset[Domain]], list[WaitingGang]] = {}
    waiting = ((gang, cluster.nodes_of(run)) for run, gang in cluster.waiting.items())
    for gang, placed in (*waiting, *((gang, ()) for gang in expected)):
        competes = not accelerators or not accelerators.isdisjoint(_extended(gang.requests))
        if competes and now - gang.newest < LONGEST_CLAIM and gang.uids.isdisjoint(own_uids):
            domains = domains_of(labels, required_keys(gang.placement), placed)
            gangs_by_spec.setdefault((gang.spec(), domains), []).append(gang)
    if not gangs_by_spec:
        return 0
    used = cluster.used_by_others(own_uids)
    usable = [node for node in cluster.nodes if node["metadata"]["name"] in fits]
    others = [node for node in cluster.nodes if node["metadata"]["name"] not in fits]
    claimed = 0
    for (_, domains), gangs in gangs_by_spec.items():
        placement, requests = gangs[0].placement, gangs[0].requests
        keys = required_keys(placement)
        places = _fitting(in_domains(usable, keys, domains), used, placement, requests)
        shared = sum(min(count, fits[name]) for name, count in places.items())
        if not shared:
            continue
        room = sum(in_one_domain(usable, keys, places).values())
        if room < max(len(gang.uids) for gang in gangs):
            # The rest of a gang may be bound to nodes that this run cannot use.
            places |= _fitting(in_domains(others, keys, domains), used, placement, requests)
            room = sum(in_one_domain(cluster.nodes, keys, places).values())
        claimed += sum(min(len(gang.uids), shared) for gang in gangs if len(gang.uids) <= room)
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
            before = total.get(name, 0)
            total[name] = before + amount if sidecar else max(before, amount)
    _add(total, _amounts(spec.get("overhead") or {}))
    return total


def _requests_and_pod(spec: Object) -> Amounts:
    return pod_requests(spec) | {PODS: _amount("1")}


def _placement(spec: Object) -> Object:
    """What of a pod's spec decides which nodes it may use."""
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED)
    shared = [{"topologyKey": key} for key in required_keys(spec)]
    return {
        "nodeSelector": spec.get("nodeSelector"),
        "affinity": {"nodeAffinity": {_REQUIRED: required}, "podAffinity": {_REQUIRED: shared}},
        "tolerations": spec.get("tolerations"),
    }


def _extended(requests: Amounts) -> set[str]:
    """The extended resources that are requested, such as accelerators: only their names have a domain."""
    return {name for name, amount in requests.items() if "/" in name and amount > 0}


def _fitting(
    nodes: Iterable[Object], used: Mapping[str, Amounts], placement: Object, requested: Amounts
) -> dict[str, int]:
    fits = {}
    for node in nodes:
        name = node["metadata"]["name"]
        if is_schedulable(node, placement):
            count = _count(_allocatable(node), used.get(name, {}), requested)
            if count > 0:
                fits[name] = count
    return fits


def _container_requests(container: Object) -> Amounts:
    resources = container.get("resources") or {}
    return _amounts((resources.get("limits") or {}) | (resources.get("requests") or {}))


def _amounts(quantities: Mapping[str, Any]) -> Amounts:
    return {name: _amount(str(amount)) for name, amount in quantities.items()}


@lru_cache(maxsize=16_384)  # Thousands of nodes and pods have the same quantities.
def _amount(text: str) -> int:
    return int(quantity.parse(text) * 10**9)


def _add(total: Amounts, more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _allocatable(node: Object) -> Amounts:
    return _amounts((node.get("status") or {}).get("allocatable") or {})


def _with_backed(allocatable: Mapping[str, str], backed: Mapping[str, str] | None) -> Mapping[str, str]:
    """The scheduler counts the devices of a node that does not have the resource itself."""
    missing = {
        name: amount for name, amount in (backed or {}).items() if allocatable.get(name) in (None, "0")
    }
    return {**allocatable, **missing} if missing else allocatable


def _count(allocatable: Amounts, used: Amounts, requested: Amounts) -> int:
    return min(
        (allocatable.get(name, 0) - used.get(name, 0)) // amount
        for name, amount in requested.items()
        if amount > 0
    )


def is_schedulable(node: Object, spec: Object) -> bool:
    """Whether a node takes pods of this spec, if it has room: its labels match, its taints are tolerated."""
    if node_state(node) is not NodeState.READY or (node.get("spec") or {}).get("unschedulable"):
        return False
    tolerations = spec.get("tolerations") or []
    for taint in (node.get("spec") or {}).get("taints") or []:
        blocking = taint.get("effect") in BLOCKING_EFFECTS
        if blocking and not any(tolerates(each, taint) for each in tolerations):
            return False
    selector = spec.get("nodeSelector") or {}
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED)
    terms = (affinity or {}).get("nodeSelectorTerms") or []
    return not terms or any(_matches(term, labels) for term in terms)


def tolerates(toleration: Object, taint: Object) -> bool:
    """Whether a toleration of a pod matches a taint of a node, both as in their specs."""
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
