"""Which nodes may be cordoned, and when one that the operator cordoned is uncordoned.

The node itself records it: a label with the time, and an annotation with the evidence. So every replica and
every run sees the same, and a node that somebody else cordoned is left alone.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any, Final

from megatron_operator.api.labels import (
    ANNOTATION_CORDONED_FOR,
    ANNOTATION_UNCORDONED_AT,
    FIELD_MANAGER,
    LABEL_CORDONED_AT,
)
from megatron_operator.api.platform import BadNodes, PlatformConfig
from megatron_operator.api.recovery_status import NodeEvidence
from megatron_operator.api.times import seconds
from megatron_operator.lifecycle.node_evidence import NODE_CONDITION, NODE_LOST, NODE_TAINT
from megatron_operator.lifecycle.node_health import HOUR, cap, hardware_sign
from megatron_operator.lifecycle.node_state import (
    NodeState,
    NodeStatus,
    node_state,
    ready_condition,
    with_signs,
)

Object = Mapping[str, Any]
SILENCE_FORGIVEN: Final = HOUR
"""Seconds for which a node that was lost must be ready before it is uncordoned."""


def has_accelerators(node: Object, platform: PlatformConfig) -> bool:
    """Whether a profile of the platform describes the node: only such a node may be cordoned.

    A resource that the node has none of any more, because its devices failed, counts too.
    """
    labels = node["metadata"].get("labels") or {}
    capacity = (node.get("status") or {}).get("capacity") or {}
    return any(
        (profile.node_labels and profile.node_labels.items() <= labels.items())
        or profile.resource_name in capacity
        for profile in platform.accelerators.values()
    )


def is_cordoned(node: Object) -> bool:
    """Whether a node takes no new pods, whoever cordoned it."""
    return bool((node.get("spec") or {}).get("unschedulable"))


def is_own_cordon(node: Object) -> bool:
    """Whether the operator cordoned the node, and nobody has uncordoned and cordoned it since.

    Whoever sets a field last is its manager. Without a record of it, the operator's label counts.
    """
    owners = [
        each.get("manager")
        for each in node["metadata"].get("managedFields") or []
        if "f:unschedulable" in ((each.get("fieldsV1") or {}).get("f:spec") or {})
    ]
    return bool(cordoned_at(node)) and is_cordoned(node) and (not owners or FIELD_MANAGER in owners)


def cordon_patch(node: Object, evidence: NodeEvidence, now: float) -> dict[str, Any] | None:
    """Merge patch that cordons a node; None where it is cordoned already. `now`: seconds since the epoch."""
    if is_cordoned(node):
        return None
    record = {"evidence": evidence.evidence, "cause": evidence.cause, "bootID": _boot_id(node)}
    return {
        "metadata": {
            "labels": {LABEL_CORDONED_AT: str(int(now))},
            "annotations": {ANNOTATION_CORDONED_FOR: json.dumps(record), ANNOTATION_UNCORDONED_AT: None},
        },
        "spec": {"unschedulable": True},
    }


def uncordon_patch(now: float) -> dict[str, Any]:
    """Merge patch that undoes `cordon_patch`, and records when. `now`: seconds since the epoch."""
    patch = release_patch()
    patch["metadata"]["annotations"][ANNOTATION_UNCORDONED_AT] = str(int(now))
    return patch | {"spec": {"unschedulable": None}}


def release_patch() -> dict[str, Any]:
    """Merge patch after which the cordon of a node is somebody else's."""
    return {
        "metadata": {
            "labels": {LABEL_CORDONED_AT: None},
            "annotations": {ANNOTATION_CORDONED_FOR: None},
        }
    }


def cordon_cap(cordoned: Collection[Object], pool: int, rules: BadNodes, now: float) -> str | None:
    """The setting of the platform by which no further node may be cordoned; None while one may.

    `cordoned` are the nodes that the operator cordoned, `pool` is the number of nodes that match the run.
    """
    share = max(1, int(rules.max_share * pool))
    if len(cordoned) >= share:
        return cap(rules, share, by_share=True)
    recent = sum(now - cordoned_at(node) < HOUR for node in cordoned)
    return cap(rules, share, by_share=False) if recent >= rules.max_per_hour else None


def healed(node: Object, rules: BadNodes, now: float) -> str | None:
    """Why a node that the operator cordoned may be used again; None while it may not.

    What a device reported is over once the node was restarted, which resets its devices: the first run there
    finds out whether it holds.
    """
    if node_state(node) is not NodeState.READY:
        return None
    if hardware_sign(with_signs(NodeStatus(NodeState.READY), node), rules) is not None:
        return None
    record = record_of(node, ANNOTATION_CORDONED_FOR)
    match record.get("evidence"):
        case value if value in (NODE_CONDITION, NODE_TAINT):
            return "its condition or taint is gone"
        case value if value == NODE_LOST:
            since = seconds(ready_condition(node).get("lastTransitionTime"))
            ready = since is not None and now - since >= SILENCE_FORGIVEN
            return f"it has been ready for {SILENCE_FORGIVEN / 60:.0f} min" if ready else None
        case _:
            restarted = bool(_boot_id(node)) and record.get("bootID") not in (None, "", _boot_id(node))
            return "it was restarted" if restarted else None


def record_of(node: Object, annotation: str) -> dict[str, Any]:
    """The JSON object in an annotation of a node; empty where it has none."""
    annotations = node["metadata"].get("annotations") or {}
    try:
        record = json.loads(annotations.get(annotation) or "{}")
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def cordoned_at(node: Object) -> float:
    """When the operator cordoned the node, in seconds since the epoch; 0 if it did not."""
    text = str((node["metadata"].get("labels") or {}).get(LABEL_CORDONED_AT))
    return float(text) if text.isascii() and text.isdigit() else 0.0


def _boot_id(node: Object) -> str:
    return str(((node.get("status") or {}).get("nodeInfo") or {}).get("bootID") or "")
