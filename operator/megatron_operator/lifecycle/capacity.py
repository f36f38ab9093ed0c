"""How many of a run's pods the cluster has room for. Arithmetic on what was listed, no I/O."""

from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction
from typing import Any, Final

from megatron_operator.controller.node_reader import NodeState, node_of, node_state
from megatron_operator.manifests import quantity

Object = Mapping[str, Any]
Amounts = dict[str, Fraction]

PODS: Final = "pods"
_TRIES: Final = frozenset({"NoSchedule", "NoExecute"})


def room(
    nodes: Iterable[Object], pods: Iterable[Object], template: Object, mine: Collection[str]
) -> dict[str, int]:
    """Pods made from `template` that fit, by node, in what is free there and what pods of `mine` (uids) hold.

    Nodes that are not ready, are cordoned, are tainted or do not match are left out. What nodes do not say,
    such as volumes, anti-affinity and quotas of queues, is not looked at.
    """
    spec = template["spec"]
    wanted = requests(spec) | {PODS: Fraction(1)}
    used: dict[str, Amounts] = {}
    for pod in pods:
        where = node_of(pod)
        phase = (pod.get("status") or {}).get("phase")
        if where is None or phase in ("Succeeded", "Failed") or pod["metadata"]["uid"] in mine:
            continue
        _add(used.setdefault(where, {}), requests(pod["spec"]) | {PODS: Fraction(1)})
    fits = {}
    for node in nodes:
        name = node["metadata"]["name"]
        if _takes(node, spec):
            count = _times(_allocatable(node), used.get(name, {}), wanted)
            if count > 0:
                fits[name] = count
    return fits


def requests(spec: Object) -> Amounts:
    """What the scheduler counts for a pod: containers together, or its greediest init container."""
    total: Amounts = {}
    for container in spec.get("containers") or []:
        _add(total, _asked(container))
    for container in spec.get("initContainers") or []:
        for name, amount in _asked(container).items():
            always = container.get("restartPolicy") == "Always"
            before = total.get(name, Fraction(0))
            total[name] = before + amount if always else max(before, amount)
    _add(total, _amounts(spec.get("overhead") or {}))
    return total


def _asked(container: Object) -> Amounts:
    resources = container.get("resources") or {}
    return _amounts((resources.get("limits") or {}) | (resources.get("requests") or {}))


def _amounts(quantities: Mapping[str, Any]) -> Amounts:
    return {name: quantity.parse(str(amount)) for name, amount in quantities.items()}


def _add(total: Amounts, more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Fraction(0)) + amount


def _allocatable(node: Object) -> Amounts:
    return _amounts((node.get("status") or {}).get("allocatable") or {})


def _times(there: Amounts, used: Amounts, wanted: Amounts) -> int:
    none = Fraction(0)
    return int(
        min(
            (there.get(name, none) - used.get(name, none)) // amount
            for name, amount in wanted.items()
            if amount > 0
        )
    )


def _takes(node: Object, spec: Object) -> bool:
    if node_state(node) is not NodeState.READY or (node.get("spec") or {}).get("unschedulable"):
        return False
    tolerations = spec.get("tolerations") or []
    for taint in (node.get("spec") or {}).get("taints") or []:
        if taint.get("effect") in _TRIES and not any(_tolerates(each, taint) for each in tolerations):
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
    same = toleration.get("key") == taint.get("key")
    return same and (toleration.get("value") or "") == (taint.get("value") or "")


def _matches(term: Object, labels: Mapping[str, str]) -> bool:
    """The operators that templates of this operator have; a term with any other matches nothing."""
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
