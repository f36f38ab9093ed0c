"""Lists of a large cluster are read in pages, and only what counts of each object is kept."""

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from kubernetes.aio import client
from megatron_operator.controller.api_client import PAGE, ApiClient
from megatron_operator.controller.cluster_reader import ClusterReader
from megatron_operator.lifecycle.capacity import ClusterUsage

FOREIGN_PODS = 20_000
LARGEST_PEAK = 50 * 2**20


def foreign_pod(number: int) -> dict[str, Any]:
    """A pod of 1 KB; a real one is several times as large."""
    return {
        "metadata": {
            "name": f"pod-{number}",
            "uid": f"uid-{number}",
            "managedFields": [{"manager": "kubelet", "fieldsV1": {f"f:field-{i}": {} for i in range(20)}}],
        },
        "spec": {
            "nodeName": f"node-{number % 100}",
            "containers": [
                {
                    "name": "main",
                    "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}},
                    "env": [{"name": f"VARIABLE_{i}", "value": "value" * 5} for i in range(10)],
                }
            ],
        },
        "status": {"phase": "Running"},
    }


class ApiServerOfManyPods:
    """An HTTP server on loopback with the same page of pods over and over, and no nodes."""

    def __init__(self) -> None:
        self.page = json.dumps([foreign_pod(number) for number in range(PAGE)])
        self.requests = 0

    async def pods(self, request: web.Request) -> web.Response:
        self.requests += 1
        end = int(request.query.get("continue", 0)) + int(request.query["limit"])
        token = str(end) if end < FOREIGN_PODS else ""
        text = f'{{"metadata": {{"continue": "{token}"}}, "items": {self.page}}}'
        return web.json_response(text=text)

    async def nodes(self, _request: web.Request) -> web.Response:
        return web.json_response({"metadata": {}, "items": []})

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[ApiClient]:
        application = web.Application()
        application.add_routes([web.get("/api/v1/pods", self.pods), web.get("/api/v1/nodes", self.nodes)])
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        api = ApiClient(client.ApiClient(client.Configuration(host=f"http://127.0.0.1:{port}")))
        try:
            yield api
        finally:
            await api.close()
            await runner.cleanup()


def test_twenty_thousand_foreign_pods_take_less_than_50_mib() -> None:
    server = ApiServerOfManyPods()

    async def read() -> ClusterUsage:
        async with server.connected() as api:
            return await ClusterReader(api).read()

    tracemalloc.start()
    try:
        usage = asyncio.run(read())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert server.requests == FOREIGN_PODS / PAGE
    assert sum(amounts["pods"] for amounts in usage.used.values()) == FOREIGN_PODS * 10**9
    assert peak < LARGEST_PEAK
