"""Nodes that the pods of a job keep off, written into its templates and read from them.

It is no part of the job's hash: pods that run stay where they are, and those made from then on obey.
"""

import copy
from collections.abc import Iterable
from typing import Any

from megatron_operator.manifests.identity import Manifest
from megatron_operator.manifests.placement import HOSTNAME
from megatron_operator.manifests.pytorchjob import templates

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def _terms(template: Manifest) -> list[Manifest]:
    affinity = (template["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    return list((affinity.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [])


def _ours(expression: Manifest) -> bool:
    """Neither profiles nor recipes can say NotIn, so whatever does is from here."""
    return (expression.get("key"), expression.get("operator")) == (HOSTNAME, "NotIn")


def avoided(job: dict[str, Any]) -> frozenset[str]:
    """Host names that all templates of a job keep off."""
    each = [
        {
            name
            for term in _terms(template)
            for expression in term.get("matchExpressions") or []
            if _ours(expression)
            for name in expression.get("values") or []
        }
        for template in templates(job)
    ]
    return frozenset(set.intersection(*each)) if each else frozenset()


def avoiding(job: Manifest, nodes: Iterable[str]) -> Manifest:
    """The job with templates that keep off these nodes and no others; a copy."""
    changed = copy.deepcopy(job)
    names = sorted(set(nodes))
    for template in templates(changed):
        _keep_off(template, names)
    return changed


def _keep_off(template: Manifest, names: list[str]) -> None:
    terms = []
    for term in _terms(template) or [{}]:
        kept = [each for each in term.get("matchExpressions") or [] if not _ours(each)]
        if names:
            kept.append({"key": HOSTNAME, "operator": "NotIn", "values": names})
        others = {key: value for key, value in term.items() if key != "matchExpressions"}
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
