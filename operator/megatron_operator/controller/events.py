"""Posts the Kubernetes Events of a recipe, which `kubectl describe` shows beside its status."""

import logging

from megatron_operator.api.labels import API_VERSION, FIELD_MANAGER, KIND
from megatron_operator.api.times import timestamp
from megatron_operator.controller.api_client import EVENTS, ApiClient, ApiError
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.manifests.metadata import digest

log = logging.getLogger(__name__)


async def post_events(api: ApiClient, status: StatusBuilder) -> None:
    """Post the new Events. Their names are hashes of their content, so posting one twice creates one.

    An Event that cannot be posted is logged: the status holds the same information.
    """
    metadata = status.body["metadata"]
    now = timestamp(status.now)
    for event in status.events:
        content = [status.uid, status.generation, status.recovery.restarts, event.reason, event.message]
        body = {
            "metadata": {
                "name": f"{metadata['name']}.{digest(content)}",
                "namespace": metadata["namespace"],
            },
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            "type": "Warning" if event.warning else "Normal",
            "reason": event.reason,
            "message": event.message,
            "source": {"component": FIELD_MANAGER},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await api.create(EVENTS, body)
        except ApiError as error:
            if not error.conflict:
                log.warning("%s: event %s not posted: %s", status.key, event.reason, error)
