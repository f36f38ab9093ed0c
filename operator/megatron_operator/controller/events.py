"""Posts the Kubernetes Events of a recipe, which `kubectl describe` shows beside its status."""

import logging
from typing import Final

from megatron_operator.api.labels import API_VERSION, FIELD_MANAGER, KIND
from megatron_operator.api.reasons import Reason
from megatron_operator.api.times import timestamp
from megatron_operator.controller import metrics
from megatron_operator.controller.api_client import ApiClient, ApiError
from megatron_operator.controller.api_resources import EVENTS
from megatron_operator.controller.event_budget import EventBudget
from megatron_operator.lifecycle.status_builder import RecipeEvent, StatusBuilder
from megatron_operator.manifests.metadata import digest

log = logging.getLogger(__name__)

LONGEST_NAME: Final = 253
"""Characters of the name of an Event."""
OWN_REASONS: Final = frozenset(Reason)


class EventPoster:
    """Posts Events within the budget of each recipe. What is left out is counted, and reported later."""

    def __init__(self, api: ApiClient, budget: EventBudget | None = None) -> None:
        self._api = api
        self._budget = budget or EventBudget()

    async def post(self, status: StatusBuilder) -> None:
        """Post the new Events. Their names are hashes of their content, so posting one twice creates one.

        One that exists already costs no budget. An Event that cannot be posted is logged: the status holds
        the same information.
        """
        if count := self._budget.summary(status.key):
            text = f"{count} Events of this recipe were not posted: they came too fast"
            log.warning("%s: %s", status.key, text)
            await self._post(status, RecipeEvent(Reason.EVENTS_DROPPED, text, warning=True))
        for event in status.events:
            if self._budget.take(status.key, own=event.reason in OWN_REASONS):
                await self._post(status, event)
            else:
                metrics.EVENTS_DROPPED.inc()

    async def post_with_refusal(self, status: StatusBuilder, error: Exception) -> None:
        """Post the new Events, and one more where `error` is a refusal of what follows from the status."""
        if isinstance(error, ApiError) and error.refused:
            text = f"the run's job or pods are not changed, which is tried again: {error.message}"
            status.add_event(Reason.JOB_REFUSED, text, warning=True)
        await self.post(status)

    async def _post(self, status: StatusBuilder, event: RecipeEvent) -> None:
        try:
            await self._api.create(EVENTS, _body(status, event))
        except ApiError as error:
            if error.exists:
                self._budget.give_back(status.key)
            else:
                log.warning("%s: event %s not posted: %s", status.key, event.reason, error)


def _body(status: StatusBuilder, event: RecipeEvent) -> dict[str, object]:
    metadata = status.body["metadata"]
    now = timestamp(status.now)
    content = [status.uid, status.generation, status.recovery.restarts, event.reason, event.message]
    suffix = f".{digest(content)}"
    return {
        "metadata": {
            # A recipe's name may be as long as an Event's; a cut one must not end in a separator.
            "name": metadata["name"][: LONGEST_NAME - len(suffix)].rstrip(".-") + suffix,
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
