"""How pods ended that were replaced while the operator was not running: Events are kept for an hour."""

import re
from collections.abc import Iterable
from typing import Final

from megatron_operator.controller.api_client import EVENTS, ApiClient
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.pod_termination import PodEnd, short_name
from megatron_operator.lifecycle.snapshot import RunSnapshot

MAX_PODS: Final = 8
"""At most so many pods are inspected."""
_EXITED: Final = re.compile(r"\.(\S+) exited with code (\d+)$")
"""By the training-operator: `Pod: default.run-worker-0 exited with code 138`."""
_SCHEDULED: Final = re.compile(r" to (\S+)$")
"""By the scheduler: `Successfully assigned default/run-worker-0 to node-1`."""


async def ends_from_events(
    api: ApiClient, snapshot: RunSnapshot, pods: Iterable[Object], since: str
) -> dict[str, PodEnd]:
    """Pod name -> how its predecessor ended, for those of `pods` that have Events of it.

    `since` is an RFC 3339 time: exit codes reported before are of an earlier pod.
    """
    missing = [pod for pod in pods if pod["metadata"]["name"] not in snapshot.ends][:MAX_PODS]
    if not missing:
        return {}
    namespace = snapshot.existing_job["metadata"]["namespace"]
    selector = f"involvedObject.uid={snapshot.job_uid},reason=ExitedWithCode"
    of_job = await api.find(EVENTS, namespace, fields=selector)
    ends = {}
    for pod in missing:
        name = pod["metadata"]["name"]
        of_pod = await api.find(
            EVENTS, namespace, fields=f"involvedObject.kind=Pod,involvedObject.name={name}"
        )
        end = _end(pod, short_name(pod, snapshot.name), _exit_code(of_job, name, since), of_pod)
        if end is not None:
            ends[name] = end
    return ends


def _exit_code(events: list[Object], pod: str, since: str) -> int | None:
    for event in sorted(events, key=_time, reverse=True):
        match = _EXITED.search(event.get("message") or "")
        if match and match[1] == pod and _time(event) >= since:
            return int(match[2])
    return None


def _end(pod: Object, name: str, code: int | None, events: list[Object]) -> PodEnd | None:
    """How the predecessor of `pod` ended, by the Events under the same name."""
    before = [event for event in events if event["involvedObject"].get("uid") != pod["metadata"]["uid"]]
    scheduled = [event for event in before if event.get("reason") == "Scheduled"]
    if not scheduled:
        return None if code is None else PodEnd(f"{name}: ended (exit code {code})", code)
    last = max(scheduled, key=_time)
    match = _SCHEDULED.search(last.get("message") or "")
    node = match[1] if match else None
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


def _time(event: Object) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")
