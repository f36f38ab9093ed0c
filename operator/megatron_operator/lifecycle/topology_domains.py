"""Topology domains that all pods of a gang must share, as required pod affinity of their template states."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

Object = Mapping[str, Any]
Domain = tuple[str, ...]
"""Values of the required keys on a node."""
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def required_keys(spec: Object) -> tuple[str, ...]:
    """Node labels that all pods of a gang must share, nearest first; `spec` is that of a pod.

    The templates of this operator have no required pod affinity but to the gang itself.
    """
    terms = ((spec.get("affinity") or {}).get("podAffinity") or {}).get(_REQUIRED) or []
    return tuple(str(term["topologyKey"]) for term in terms)


def domains_of(
    labels: Mapping[str, Mapping[str, str]], keys: tuple[str, ...], names: Iterable[str]
) -> frozenset[Domain]:
    """Domains of these nodes, of those that exist and have all keys; `labels` is by node name.

    None without keys.
    """
    found = (labels.get(name, {}) for name in names) if keys else ()
    return frozenset(tuple(str(each[key]) for key in keys) for each in found if all(k in each for k in keys))


def in_domains(
    nodes: Iterable[Object], keys: tuple[str, ...], domains: Collection[Domain]
) -> Iterable[Object]:
    """The nodes in these domains; all where there are none."""
    if not domains:
        return nodes
    labels = ((node, node["metadata"].get("labels") or {}) for node in nodes)
    return (node for node, each in labels if tuple(each.get(key) for key in keys) in domains)


def by_domain(
    nodes: Iterable[Object], keys: tuple[str, ...], fits: Mapping[str, int]
) -> dict[Domain, dict[str, int]]:
    """`fits`, number of pods by node name, by domain. The scheduler uses no node that lacks one of the keys.

    Without keys all nodes are in one domain.
    """
    found: dict[Domain, dict[str, int]] = {}
    for node in nodes:
        name, labels = node["metadata"]["name"], node["metadata"].get("labels") or {}
        if name in fits and all(key in labels for key in keys):
            domain = tuple(str(labels[key]) for key in keys)
            found.setdefault(domain, {})[name] = fits[name]
    return found


def in_one_domain(
    nodes: Collection[Object], keys: tuple[str, ...], fits: Mapping[str, int], placed: Collection[str] = ()
) -> dict[str, int]:
    """The part of `fits` that a gang can use: the domain with the most room.

    With `placed`, nodes of pods that stay where they are, only the domains of these nodes count.
    """
    if not keys:
        return dict(fits)
    domains = by_domain(nodes, keys, fits)
    if placed:
        own = by_domain(nodes, keys, dict.fromkeys(placed, 0))
        domains = {domain: each for domain, each in domains.items() if domain in own}
    return max(domains.values(), key=lambda each: sum(each.values()), default={})


def too_small(
    nodes: Iterable[Object], keys: tuple[str, ...], fits: Mapping[str, int], pods: int
) -> frozenset[str]:
    """Values of the nearest key in whose domains some, but not all of `pods` pods have room.

    None unless another domain has room for all: a gang may then wait anywhere. The scheduler, which places
    pods one by one, could put the first pod of a gang into such a domain, where the others wait.
    """
    room: dict[str, int] = {}
    for domain, each in by_domain(nodes, keys, fits).items() if keys else ():
        room[domain[0]] = max(room.get(domain[0], 0), sum(each.values()))
    if max(room.values(), default=0) < pods:
        return frozenset()
    return frozenset(value for value, count in room.items() if count < pods)
