"""Nodes and topology domains that the pods of a job avoid: the node affinity of its pod templates.

The job's hash does not include them: running pods stay, and new pods avoid the nodes.
"""

from collections.abc import Iterable
from typing import Any

from megatron_operator.manifests.affinity import HOSTNAME
from megatron_operator.manifests.job_backends import backend_of
from megatron_operator.manifests.metadata import Manifest, copied
from megatron_operator.manifests.pytorchjob import template_patch

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def _terms(template: Manifest) -> list[Manifest]:
    affinity = (template["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    return list((affinity.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [])


def _ours(expression: Manifest, key: str = HOSTNAME) -> bool:
    """Profiles and recipes cannot set NotIn, so an expression with it was added here."""
    return (expression.get("key"), expression.get("operator")) == (key, "NotIn")


def _names(template: Manifest) -> set[str]:
    return {
        name
        for term in _terms(template)
        for expression in term.get("matchExpressions") or []
        if _ours(expression)
        for name in expression.get("values") or []
    }


def avoided(job: dict[str, Any]) -> frozenset[str]:
    """Host names that all templates of a job avoid."""
    return frozenset(set.intersection(*(_names(template) for template in backend_of(job).templates(job))))


def avoiding(job: Manifest, nodes: Iterable[str]) -> Manifest:
    """A copy of the job whose templates avoid exactly these nodes."""
    changed = copied(job)
    names = sorted(set(nodes))
    for template in backend_of(changed).templates(changed):
        _set_avoided(template, HOSTNAME, names)
    return changed


def avoiding_domains(job: Manifest, key: str, values: Iterable[str]) -> Manifest:
    """A copy of the job whose templates avoid exactly these domains: `values` of the label `key`."""
    changed = copied(job)
    for template in backend_of(changed).templates(changed):
        _set_avoided(template, key, sorted(values))
    return changed


def avoided_by(pod: dict[str, Any]) -> frozenset[str]:
    """Host names that a pod avoids, from the template that it was created from."""
    return frozenset(_names(pod))


def merge_patch(job: Manifest, nodes: Iterable[str]) -> Manifest:
    """JSON merge patch that makes a PyTorchJob avoid exactly these nodes; null deletes a field."""
    changed = avoiding(job, nodes)
    changes: list[Manifest] = []
    for template in backend_of(changed).templates(changed):
        affinity = template["spec"].get("affinity") or {}
        node_affinity = affinity.get("nodeAffinity") or {}
        required = {_REQUIRED: node_affinity.get(_REQUIRED)}
        changes.append({"spec": {"affinity": {"nodeAffinity": required}}})
    return template_patch(job, changes)


def _set_avoided(template: Manifest, key: str, values: list[str]) -> None:
    terms = []
    for term in _terms(template) or [{}]:
        kept = [each for each in term.get("matchExpressions") or [] if not _ours(each, key)]
        if values:
            kept.append({"key": key, "operator": "NotIn", "values": values})
        others = {name: value for name, value in term.items() if name != "matchExpressions"}
        if kept:
            others["matchExpressions"] = kept
        if others:
            terms.append(others)
    affinity = template["spec"].setdefault("affinity", {})
    if terms:
        affinity.setdefault("nodeAffinity", {})[_REQUIRED] = {"nodeSelectorTerms": terms}
        return
    node_affinity = affinity.get("nodeAffinity") or {}
    node_affinity.pop(_REQUIRED, None)
    if not node_affinity:
        affinity.pop("nodeAffinity", None)
    if not affinity:
        template["spec"].pop("affinity")
