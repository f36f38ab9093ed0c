"""Where pods of the Jobs without accelerators may run, and what keeps them from every node."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from megatron_operator.api.platform import MAINTENANCE_TAINTS
from megatron_operator.api.reasons import Reason
from megatron_operator.lifecycle.capacity import tolerates
from megatron_operator.lifecycle.node_state import Taint, node_of
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.pod_diagnosis import Diagnosis
from megatron_operator.manifests import cpu_job

_TOLERATIONS: Final = "platform.cpuJobs.tolerations"
_SELECTOR: Final = "platform.cpuJobs.nodeSelector"
_OF_KUBERNETES: Final = ("node.kubernetes.io/", "node-role.kubernetes.io/")
"""How keys of taints begin that are not named: of nodes that are cordoned or lack memory or disk, and of
those that run the control plane. Nor are those of nodes that are about to go (MAINTENANCE_TAINTS)."""
_MOST_SHOWN: Final = 4
_ENDED: Final = ("Succeeded", "Failed")


def is_placed_otherwise(job: Object, body: Object, pods: Iterable[Object]) -> bool:
    """Whether the platform has other nodes for a Job than when it was created, and no pod is on a node.

    Pods that are go on there; those that have ended do not count. A Job of which no other is left than those
    that succeeded is about to be complete.
    """
    states = [((pod.get("status") or {}).get("phase"), node_of(pod)) for pod in pods]
    left = [node for phase, node in states if phase not in _ENDED]
    is_done = not left and any(phase == "Succeeded" for phase, _ in states)
    return cpu_job.placement(job) != cpu_job.placement(body) and not any(left) and not is_done


def with_platform_field(
    found: Diagnosis, body: Object, pods: Sequence[Object], taints: Collection[Taint] | None
) -> Diagnosis:
    """The problem of a Job's pods, with the field of the platform that lets them run on the nodes that exist.

    `taints`: those of the ready nodes that keep pods away; None where nodes are not known. The scheduler does
    not name them (from Kubernetes 1.35 on), and not everybody may read nodes.
    """
    if found.reason is not Reason.UNSCHEDULABLE:
        return found
    text = found.message
    named = None if taints is None else _to_tolerate(pods, taints)
    if "taint" in found.message and named != []:
        text += f"; nodes with taints{_listed(named or [])} take it once {_TOLERATIONS} has these"
    selector = body["spec"]["template"]["spec"].get("nodeSelector")
    if selector and "selector" in found.message:
        labels = ", ".join(f"{key}={value}" for key, value in sorted(selector.items()))
        text += f"; {_SELECTOR} requires {labels}"
    return replace(found, message=text)


def _to_tolerate(pods: Sequence[Object], taints: Collection[Taint]) -> list[str]:
    """The taints, as `key:effect`, that keep these pods off nodes an administrator may let them run on."""
    tolerations = [each for pod in pods for each in (pod.get("spec") or {}).get("tolerations") or []]
    left = [
        f"{taint.key}:{taint.effect}"
        for taint in sorted(taints)
        if not taint.key.startswith(_OF_KUBERNETES)
        and taint.key not in MAINTENANCE_TAINTS
        and not any(tolerates(each, taint._asdict()) for each in tolerations)
    ]
    return list(dict.fromkeys(left))


def _listed(named: Sequence[str]) -> str:
    shown = "".join(f" {each}," for each in named[:_MOST_SHOWN])
    if len(named) > _MOST_SHOWN:
        shown += f" and {len(named) - _MOST_SHOWN} others,"
    return shown.rstrip(",")
