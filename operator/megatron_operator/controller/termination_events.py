"""Reads how pods ended that were replaced while the operator was not running: Events are kept for an hour."""

from collections.abc import Iterable
from typing import Final

from megatron_operator.controller.api_client import ApiClient
from megatron_operator.controller.api_resources import EVENTS
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.pod_end_events import exit_code_in_events, previous_pod_end
from megatron_operator.lifecycle.pod_termination import PodEnd, short_name
from megatron_operator.lifecycle.snapshot import RunSnapshot
from megatron_operator.manifests.job_backends import stable_name

MAX_PODS: Final = 8
"""At most so many pods are inspected."""


async def ends_from_events(
    api: ApiClient, snapshot: RunSnapshot, pods: Iterable[Object], since: str, placement: str | None
) -> dict[str, PodEnd]:
    """Pod name -> how its predecessor ended, for those of `pods` that have Events of it.

    `since` is an RFC 3339 time: exit codes reported before are of an earlier pod. `placement` is what the
    status has of the gang's nodes.
    """
    missing = [pod for pod in pods if stable_name(pod) not in snapshot.ends][:MAX_PODS]
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
        code = exit_code_in_events(of_job, name, since)
        end = previous_pod_end(pod, short_name(pod, snapshot.name), code, of_pod, placement)
        if end is not None:
            ends[stable_name(pod)] = end
    return ends
