"""Kubernetes Events about a recipe: what `kubectl describe` tells beside the status."""

import logging

from megatron_operator.api.labels import API_VERSION, FIELD_MANAGER, KIND
from megatron_operator.api.times import timestamp
from megatron_operator.controller.api_client import EVENTS, ApiError, Cluster
from megatron_operator.lifecycle.status_builder import Draft
from megatron_operator.manifests.metadata import digest

log = logging.getLogger(__name__)


async def post(cluster: Cluster, draft: Draft) -> None:
    """Post what is new. The name comes from what is said, so that saying it twice is one Event.

    An Event that cannot be posted is logged: the status has said it already.
    """
    metadata = draft.body["metadata"]
    now = timestamp(draft.now)
    for notice in draft.notices:
        said = [draft.uid, draft.generation, draft.recovery.restarts, notice.reason, notice.message]
        body = {
            "metadata": {"name": f"{metadata['name']}.{digest(said)}", "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            "type": "Warning" if notice.warning else "Normal",
            "reason": notice.reason,
            "message": notice.message,
            "source": {"component": FIELD_MANAGER},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await cluster.create(EVENTS, body)
        except ApiError as error:
            if not error.conflict:
                log.warning("%s: event %s not posted: %s", draft.key, notice.reason, error)
