"""How pods ended that were replaced while the operator was away: Events remember it for an hour."""

import re
from collections.abc import Iterable
from typing import Any, Final

from megatron_operator.controller.api_client import EVENTS, Cluster, Object
from megatron_operator.lifecycle import PodEnd
from megatron_operator.lifecycle.pod_termination import short_name
from megatron_operator.lifecycle.snapshot import Scene

MOST: Final = 8
"""Of more pods that went at once the first ones tell enough."""
_EXITED: Final = re.compile(r"\.(\S+) exited with code (\d+)$")
"""The training-operator's: `Pod: default.run-worker-0 exited with code 138`."""
_SCHEDULED: Final = re.compile(r" to (\S+)$")
"""The scheduler's: `Successfully assigned default/run-worker-0 to node-1`."""


async def ends_from_events(
    cluster: Cluster, scene: Scene, pods: Iterable[Object], since: str
) -> dict[str, PodEnd]:
    """By name, for those of `pods` whose predecessors Events tell of; `since` is an RFC 3339 time."""
    missing = [pod for pod in pods if pod["metadata"]["name"] not in scene.ends][:MOST]
    if not missing:
        return {}
    namespace, uid = scene.job["metadata"]["namespace"], scene.job["metadata"]["uid"]
    of_job = await cluster.find(EVENTS, namespace, fields=f"involvedObject.uid={uid},reason=ExitedWithCode")
    ends = {}
    for pod in missing:
        name = pod["metadata"]["name"]
        of_pod = await cluster.find(
            EVENTS, namespace, fields=f"involvedObject.kind=Pod,involvedObject.name={name}"
        )
        end = _end(pod, short_name(pod, scene.name), _exit_code(of_job, name, since), of_pod)
        if end is not None:
            ends[name] = end
    return ends


def _exit_code(events: list[Object], pod: str, since: str) -> int | None:
    for event in sorted(events, key=_time, reverse=True):
        said = _EXITED.search(event.get("message") or "")
        if said and said[1] == pod and _time(event) >= since:
            return int(said[2])
    return None


def _end(pod: Object, name: str, code: int | None, events: list[Object]) -> PodEnd | None:
    """Of the pod before `pod`, by what was said of it under the same name."""
    before = [event for event in events if event["involvedObject"].get("uid") != pod["metadata"]["uid"]]
    scheduled = [event for event in before if event.get("reason") == "Scheduled"]
    if not scheduled:
        return None if code is None else PodEnd(f"{name}: ended (exit code {code})", code)
    last = max(scheduled, key=_time)
    said = _SCHEDULED.search(last.get("message") or "")
    node = said[1] if said else None
    if code is not None:
        return PodEnd(f"{name}: ended (exit code {code})", code, node=node)
    evicted = any(
        event.get("reason") == "TaintManagerEviction"
        and event["involvedObject"].get("uid") == last["involvedObject"].get("uid")
        for event in before
    )
    if evicted:
        return PodEnd(f"{name}: {node} was lost", node=node, disruption="DeletionByTaintManager")
    return PodEnd(f"{name}: pod was lost", node=node)


def _time(event: dict[str, Any]) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")
