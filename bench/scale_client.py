"""The least that the objects of a start cost: each recipe's are written as fast as the API server takes them.

`python -m bench.scale_client MANIFESTS` runs it; MANIFESTS is a file with what `start_manifests` returns. It
watches recipes without kopf, reads none, and writes for each what this operator writes: claim, token, job and
status. It plans nothing, and does not recover from errors.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, Final

import uvloop
from megatron_operator.controller.api_client import ApiClient
from megatron_operator.controller.api_resources import CLAIMS, JOBS, RECIPES, SECRETS
from megatron_operator.controller.settings import Settings
from megatron_operator.controller.workqueue import STARTS

from bench.scale_manifests import for_recipe

SECONDS: Final = 3600
"""Length of the watch."""


class Client:
    """Starts recipes, as many at a time as this operator does."""

    def __init__(self, api: ApiClient, manifests: list[str]) -> None:
        self._api = api
        *self._owned, self._status = manifests
        self._places = asyncio.Semaphore(STARTS * Settings().workers)

    async def start(self, recipe: dict[str, Any]) -> None:
        """Write the objects of one recipe, and its status."""
        async with self._places:
            made: dict[str, Any] = {}
            for resource, manifest in zip((CLAIMS, SECRETS, JOBS), self._owned, strict=True):
                made = await self._api.create(resource, for_recipe(manifest, recipe))
            status = for_recipe(self._status, recipe, made["metadata"]["uid"])
            await self._api.apply(RECIPES, status, "status")

    async def run(self) -> None:
        """Start every recipe that is created from now on."""
        *_, version = [version async for version, _ in self._api.versioned_pages(RECIPES, None)]
        async with asyncio.TaskGroup() as starts:
            while True:  # A busy API server ends a watch early.
                async for event in self._api.watch(RECIPES, version, SECONDS):
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] == "ADDED":
                        starts.create_task(self.start(event["object"]))


async def run(manifests: list[Any]) -> None:
    """Connect, and start recipes."""
    await Client(await ApiClient.connect(), [json.dumps(each) for each in manifests]).run()


def main() -> None:
    """Run until the process is ended."""
    manifests = json.loads(Path(sys.argv[1]).read_text())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(manifests))


if __name__ == "__main__":
    main()
