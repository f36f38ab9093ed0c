"""How a pod ended, from the Events about it and its job."""

import re
from collections.abc import Iterable
from typing import Final

from megatron_operator.lifecycle.object_metadata import Object, event_time
from megatron_operator.lifecycle.placement import confirmed
from megatron_operator.lifecycle.pod_termination import PodEnd

_EXITED: Final = re.compile(r"\.(\S+) exited with code ([0-9]{1,3})$")
"""By the training-operator: `Pod: default.run-worker-0 exited with code 138`. Anyone may have written it."""
_SCHEDULED: Final = re.compile(r" to ([a-z0-9][-.a-z0-9]{0,252})$")
"""By the scheduler: `Successfully assigned default/run-worker-0 to node-1`."""


def exit_code_in_events(events: Iterable[Object], pod: str, since: str) -> int | None:
    """The newest exit code of the pod in the job's Events since an RFC 3339 time; None without one."""
    for event in sorted(events, key=event_time, reverse=True):
        match = _EXITED.search(event.get("message") or "")
        if match and match[1] == pod and event_time(event) >= since:
            return int(match[2])
    return None


def previous_pod_end(
    pod: Object,
    short_name: str,
    exit_code: int | None,
    events: Iterable[Object],
    placement: str | None,
) -> PodEnd | None:
    """How the predecessor of `pod` ended, by the Events under the same pod name; None when not known.

    The node that they name counts only if `placement`, the operator's own memory, confirms it.
    """
    before = [event for event in events if event["involvedObject"].get("uid") != pod["metadata"]["uid"]]
    scheduled = [event for event in before if event.get("reason") == "Scheduled"]
    ended = f"{short_name}: ended (exit code {exit_code})"
    if not scheduled:
        return None if exit_code is None else PodEnd(ended, exit_code)
    last = max(scheduled, key=event_time)
    match = _SCHEDULED.search(last.get("message") or "")
    node = match[1] if match and confirmed(placement, pod, match[1]) else None
    if exit_code is not None:
        return PodEnd(ended, exit_code, node=node)
    evicted = any(
        event.get("reason") == "TaintManagerEviction"
        and event["involvedObject"].get("uid") == last["involvedObject"].get("uid")
        for event in before
    )
    if evicted:
        return PodEnd(
            f"{short_name}: {node or 'its node'} was lost", node=node, disruption="DeletionByTaintManager"
        )
    return PodEnd(f"{short_name}: pod was lost", node=node)
