"""Which nodes are cordoned, and when they are uncordoned."""

from copy import deepcopy
from typing import Any

import pytest
from megatron_operator.api.labels import (
    ANNOTATION_CORDONED_FOR,
    ANNOTATION_UNCORDONED_AT,
    LABEL_CORDONED_AT,
)
from megatron_operator.api.platform import BadNodes
from megatron_operator.api.recovery_status import NodeEvidence
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.cordoning import cordon_cap, cordon_patch, healed, uncordon_patch

NOW = 1_800_000_000.0
RULES = BadNodes(cordon=True)


def node(ready: str = "True", ready_since: float = NOW - 9000, **conditions: str) -> dict[str, Any]:
    others = [{"type": kind, "status": status} for kind, status in conditions.items()]
    known = {"type": "Ready", "status": ready, "lastTransitionTime": timestamp(ready_since)}
    return {
        "metadata": {"name": "node-1", "labels": {}, "annotations": {}},
        "spec": {},
        "status": {"conditions": [known, *others], "nodeInfo": {"bootID": "first"}},
    }


def cordoned(evidence: str, of: dict[str, Any] | None = None, at: float = NOW - 600) -> dict[str, Any]:
    """The node once the operator has cordoned it for such evidence."""
    found = deepcopy(of or node())
    why = NodeEvidence(evidence=evidence, cause="seen", time=timestamp(at))
    patch = cordon_patch(found, why, at)
    assert patch is not None
    found["spec"] |= patch["spec"]
    for part in ("labels", "annotations"):
        found["metadata"][part] |= patch["metadata"][part]
    return found


def test_a_node_that_somebody_else_cordoned_stays_as_it_is() -> None:
    other = node() | {"spec": {"unschedulable": True}}
    assert cordon_patch(other, NodeEvidence(evidence="DeviceMemory", cause="", time=""), NOW) is None


def test_uncordoning_removes_all_that_cordoning_set() -> None:
    done, undone = cordoned("DeviceMemory"), uncordon_patch(NOW)
    assert undone["spec"].keys() == done["spec"].keys()
    for part in ("labels", "annotations"):
        assert undone["metadata"][part].keys() == done["metadata"][part].keys()
    assert undone["metadata"]["labels"] == {LABEL_CORDONED_AT: None}
    since = {ANNOTATION_UNCORDONED_AT: str(int(NOW))}
    assert undone["metadata"]["annotations"] == {ANNOTATION_CORDONED_FOR: None} | since


SHARE = "platform.badNodes.maxShare 0.1 of the nodes allows"
PER_HOUR = "platform.badNodes.maxPerHour allows 4 in an hour"


@pytest.mark.parametrize(
    ("ages", "pool", "reached"),
    [
        ([], 5, None),
        ([60], 5, f"{SHARE} 1 node"),
        ([60], 40, None),
        ([60, 70, 80], 100, None),
        ([60, 70, 80, 90], 100, PER_HOUR),
        ([4000] * 4, 100, None),
        ([4000] * 9, 100, None),
        ([4000] * 10, 100, f"{SHARE} 10 nodes"),
    ],
)
def test_cordons_are_limited_by_share_and_per_hour(ages: list[float], pool: int, reached: str | None) -> None:
    nodes = [cordoned("DeviceMemory", at=NOW - age) for age in ages]
    assert cordon_cap(nodes, pool, RULES, NOW) == reached


def restarted(found: dict[str, Any]) -> dict[str, Any]:
    found["status"]["nodeInfo"]["bootID"] = "second"
    return found


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (cordoned("NodeCondition"), "its condition or taint is gone"),
        (cordoned("NodeTaint"), "its condition or taint is gone"),
        (cordoned("NodeLost"), "it has been ready for 60 min"),
        (restarted(cordoned("DeviceMemory")), "it was restarted"),
        (restarted(cordoned("Preflight")), "it was restarted"),
    ],
)
def test_a_node_is_uncordoned_once_the_evidence_is_gone(found: dict[str, Any], why: str) -> None:
    assert healed(found, RULES, NOW) == why


@pytest.mark.parametrize(
    "found",
    [
        cordoned("DeviceMemory"),
        cordoned("NodeCondition", node(GPUXIDErrors="True")),
        restarted(cordoned("DeviceMemory", node(GPUXIDErrors="True"))),
        restarted(cordoned("DeviceMemory", node(ready="Unknown"))),
        cordoned("NodeLost", node(ready_since=NOW - 60)),
        restarted(node()),
    ],
    ids=["same boot", "condition", "restarted, condition", "not ready", "ready since a minute", "no record"],
)
def test_a_node_stays_cordoned_while_the_evidence_holds(found: dict[str, Any]) -> None:
    assert healed(found, RULES, NOW) is None


@pytest.mark.parametrize("text", ["", "[", "[]", "{}", '{"bootID": 7}', "[" * 100_000])
def test_a_record_that_somebody_edited_uncordons_nothing(text: str) -> None:
    found = restarted(cordoned("DeviceMemory"))
    found["metadata"]["annotations"] = {"megatron.training/cordoned-for": text}
    expected = "it was restarted" if "7" in text else None
    assert healed(found, RULES, NOW) == expected
