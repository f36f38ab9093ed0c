"""The least that a kopf operator can do: one applied PyTorchJob and one status for each recipe.

`python -m bench.scale_bare JOB` runs it; JOB is a file with the job to apply. It has no plan, no recovery and
no errors: the lower bound of what an operator of this kind costs.
"""

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

import kopf
import uvloop
from megatron_operator.api.labels import API_VERSION, GROUP, KIND, PLURAL
from megatron_operator.controller.api_client import ApiClient
from megatron_operator.controller.api_resources import JOBS, RECIPES
from megatron_operator.manifests.metadata import Owner


async def run(manifest: dict[str, Any]) -> None:
    """Apply the job for every recipe that is created."""
    api = await ApiClient.connect()
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_via_client(**kwargs)

    @kopf.on.event(GROUP, PLURAL, registry=registry)
    async def recipe(body: kopf.Body, **_: Any) -> None:
        if body.get("status", {}).get("phase"):
            return
        name, namespace, uid = (body["metadata"][key] for key in ("name", "namespace", "uid"))
        await api.apply(JOBS, manifest | {"metadata": Owner(name, namespace, uid).metadata(name)})
        identity = {"name": name, "namespace": namespace, "uid": uid}
        status = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": identity,
            "status": {"phase": "Starting"},
        }
        await api.apply(RECIPES, status, "status")

    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    await kopf.operator(registry=registry, settings=settings, standalone=True, clusterwide=True)


def main() -> None:
    """Run until the process is ended."""
    logging.getLogger("kopf").setLevel(logging.WARNING)
    manifest = json.loads(Path(sys.argv[1]).read_text())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(manifest))


if __name__ == "__main__":
    main()
