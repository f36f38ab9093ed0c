"""When a node that the operator cordoned is checked, and what the check's Job shows.

The node itself records it, in an annotation, so that a restarted operator does not check it more often.
"""

import json
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

from megatron_operator.api import quantity
from megatron_operator.api.labels import (
    ANNOTATION_CORDONED_FOR,
    ANNOTATION_NODE_CHECK,
    LABEL_CORDONED_AT,
)
from megatron_operator.api.platform import AcceleratorProfile, BadNodes, PlatformConfig
from megatron_operator.lifecycle.cordoning import cordoned_at, is_own_cordon, record_of, uncordon_patch
from megatron_operator.lifecycle.node_evidence import NODE_CONDITION, NODE_LOST, NODE_TAINT
from megatron_operator.lifecycle.node_health import HOUR, hardware_sign
from megatron_operator.lifecycle.node_state import NodeState, NodeStatus, node_state, with_signs
from megatron_operator.lifecycle.object_metadata import Object, condition, is_deleting
from megatron_operator.lifecycle.status_size import cut

DAY: Final = 24 * HOUR
LONGEST_RESULT: Final = 300
"""Characters of the result that the node keeps."""
NOT_CHECKED: Final = frozenset({NODE_CONDITION, NODE_TAINT, NODE_LOST})
"""Evidence that ends by itself; a check of the devices does not repeat it."""


def is_due(node: Object, rules: BadNodes, now: float) -> bool:
    """Whether a node is to be checked now: once an hour, while it may be cordoned for a failed device alone.

    A node that passed and was cordoned again within a day is left to its restart, or to a person: its fault
    is one that the check does not find. `now` is in seconds since the epoch.
    """
    cordoned, known = cordoned_at(node), record_of(node, ANNOTATION_NODE_CHECK)
    if not is_own_cordon(node) or is_deleting(node):
        return False
    if record_of(node, ANNOTATION_CORDONED_FOR).get("evidence") in {*NOT_CHECKED, None}:
        return False
    if node_state(node) is not NodeState.READY:
        return False
    if hardware_sign(with_signs(NodeStatus(NodeState.READY), node), rules) is not None:
        return False
    passed = _time(known.get("passed"))
    if passed and cordoned - passed < DAY:
        return False
    return now - max(cordoned, _time(known.get("started"))) >= HOUR


def profile_of(node: Object, platform: PlatformConfig) -> AcceleratorProfile | None:
    """The profile that describes the node's accelerators; None if none does.

    Of several, the one with the most labels. `platform` is completed from the labels of nodes.
    """
    labels = node["metadata"].get("labels") or {}
    capacity = (node.get("status") or {}).get("capacity") or {}
    found = [
        profile
        for _, profile in sorted(platform.accelerators.items())
        if profile.node_labels.items() <= labels.items()
        and (profile.node_labels or profile.resource_name is not None)
        and (profile.resource_name is None or _amount(capacity.get(profile.resource_name)) > 0)
    ]
    return max(found, key=lambda profile: len(profile.node_labels), default=None)


def result(job: Object) -> tuple[bool, str] | None:
    """Whether the check passed, and what its Job reports; None while it runs."""
    if condition(job, "Complete").get("status") == "True":
        return True, "passed"
    failed = condition(job, "Failed")
    if failed.get("status") == "True":
        return False, f"{failed.get('reason') or 'Failed'}: {failed.get('message') or ''}"
    return None


def is_check_of(job: Object, node: Object) -> bool:
    """Whether the Job checks this node, for the reason why the operator has cordoned it now."""
    labels = node["metadata"].get("labels") or {}
    annotations = job["metadata"].get("annotations") or {}
    owners = job["metadata"].get("ownerReferences") or []
    same_node = any(each.get("uid") == node["metadata"]["uid"] for each in owners)
    same_time = annotations.get(LABEL_CORDONED_AT) == labels.get(LABEL_CORDONED_AT)
    return same_node and same_time and is_own_cordon(node)


def started_patch(now: float, text: str) -> dict[str, Any]:
    """Merge patch of a node whose check begins, or cannot begin; the next one is due in an hour."""
    return _annotate({"started": int(now), "result": cut(text, LONGEST_RESULT)})


def failed_patch(node: Object, text: str) -> dict[str, Any]:
    """Merge patch of a node that did not pass; it stays cordoned."""
    started = _time(record_of(node, ANNOTATION_NODE_CHECK).get("started"))
    return _annotate({"started": int(started), "result": cut(text, LONGEST_RESULT)})


def passed_patch(node: Object, now: float) -> dict[str, Any]:
    """Merge patch that uncordons a node that passed."""
    started = _time(record_of(node, ANNOTATION_NODE_CHECK).get("started"))
    record = _annotate({"started": int(started), "result": "passed", "passed": int(now)})
    patch = uncordon_patch(now)
    patch["metadata"]["annotations"] |= record["metadata"]["annotations"]
    return patch


def _annotate(record: Mapping[str, Any]) -> dict[str, Any]:
    return {"metadata": {"annotations": {ANNOTATION_NODE_CHECK: json.dumps(record)}}}


def _time(value: object) -> float:
    return float(value) if isinstance(value, int) and 0 <= value < 1 << 40 else 0.0


def _amount(text: object) -> Fraction:
    try:
        return quantity.parse(str(text or "0"))
    except (ValueError, KeyError):
        return Fraction(0)
