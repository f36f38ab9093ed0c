"""Checks nodes that the operator cordoned, and uncordons those that pass, where the platform asks for it."""

import asyncio
import logging
from typing import Final

from megatron_operator.api.errors import described
from megatron_operator.api.labels import LABEL_CORDONED_AT, LABEL_NODE_CHECK, LABEL_RECIPE
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.controller.api_client import ApiClient, ApiError
from megatron_operator.controller.api_resources import BATCH_JOBS, NODES, PODS
from megatron_operator.controller.config_source import ConfigSource
from megatron_operator.lifecycle.node_checks import (
    failed_patch,
    is_check_of,
    is_due,
    passed_patch,
    profile_of,
    result,
    started_patch,
)
from megatron_operator.lifecycle.object_metadata import Object, is_deleting
from megatron_operator.lifecycle.pod_termination import pod_end
from megatron_operator.manifests import node_check

log = logging.getLogger(__name__)

INTERVAL: Final = 15.0
"""Seconds between two steps."""
AT_ONCE: Final = 4
"""Most checks that run at the same time."""
NOT_ADMITTED: Final = (
    "the chart's admission policy admits its Job only after helm upgrade with "
    "platform.badNodes.uncordonByCheck: true"
)


class NodeChecker:
    """Runs a Job on a cordoned node, in the operator's own namespace, and reads how it ends."""

    def __init__(self, api: ApiClient, config: ConfigSource, namespace: str) -> None:
        self._api = api
        self._config = config
        self._namespace = namespace

    async def step(self, now: float) -> None:
        """Conclude checks that have ended and start those that are due. Raises ApiError.

        `now` is in seconds since the epoch.
        """
        platform = await self._config.valid_platform()
        if platform is None:
            return
        rules, nodes = platform.bad_nodes, list[Object]()
        if rules.cordon and rules.uncordon_by_check:
            nodes = await self._api.find(NODES, None, labels=LABEL_CORDONED_AT)
        by_name = {node_check.name(node["metadata"]["name"]): node for node in nodes}
        jobs = await self._api.find(BATCH_JOBS, self._namespace, labels=LABEL_NODE_CHECK)
        for job in jobs:
            await self._conclude(job, by_name.get(job["metadata"]["name"]), now)
        taken = {job["metadata"]["name"] for job in jobs}
        due = [node for name, node in by_name.items() if name not in taken and is_due(node, rules, now)]
        for node in due[: max(0, AT_ONCE - len(jobs))]:
            await self._start(node, platform, now)

    async def _start(self, node: Object, platform: PlatformConfig, now: float) -> None:
        name, profile = node["metadata"]["name"], profile_of(node, platform)
        job = None if profile is None else node_check.job(node, self._namespace, platform, profile)
        if job is None:
            why = "no profile of platform.accelerators describes it" if profile is None else "it has no image"
            await self._api.merge_node(node, started_patch(now, f"not checked: {why}"))
            log.warning("node %s cannot be checked: %s", name, why)
            return
        # Before the Job, so that an operator that dies in between checks the node in an hour, not at once.
        node = await self._api.merge_node(node, started_patch(now, "started"))
        try:
            await self._api.create(BATCH_JOBS, job)
        except ApiError as error:
            if not error.refused:
                raise
            # The chart's policy names the label that Jobs of checks do not have.
            why = NOT_ADMITTED if LABEL_RECIPE in error.message else error.message
            await self._api.merge_node(node, started_patch(now, f"not checked: {why}"))
            log.warning("node %s cannot be checked: %s", name, error)
            return
        log.info("node %s is being checked by Job %s", name, job["metadata"]["name"])

    async def _conclude(self, job: Object, node: Object | None, now: float) -> None:
        """Act on a check that has ended, and delete it; also one that nobody waits for any more."""
        if is_deleting(job):
            return
        if node is not None and is_check_of(job, node):
            ended = result(job)
            if ended is None:
                return
            passed, text = ended
            name = node["metadata"]["name"]
            if passed:
                await self._api.merge_node(node, passed_patch(node, now))
                log.warning("node %s uncordoned: its devices passed the check", name)
            else:
                text = await self._message(job) or text
                await self._api.merge_node(node, failed_patch(node, text))
                log.warning("node %s stays cordoned: %s", name, text)
        await self._api.delete(BATCH_JOBS, job)

    async def _message(self, job: Object) -> str:
        """How the check's pod ended; empty where it is gone."""
        selector = f"{LABEL_NODE_CHECK}={job['metadata']['labels'][LABEL_NODE_CHECK]}"
        pods = await self._api.find(PODS, self._namespace, labels=selector)
        ends = (pod_end(pod, job["metadata"]["name"]) for pod in pods)
        return next((end.cause for end in ends if end is not None), "")

    async def run(self) -> None:
        """Check nodes for as long as the operator acts."""
        while True:
            await asyncio.sleep(INTERVAL)
            try:
                await self.step(self._api.clock.now())
            except Exception as error:
                log.warning("cannot check cordoned nodes: %s", described(error))
