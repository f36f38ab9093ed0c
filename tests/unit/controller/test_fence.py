"""Writes of an operator that is not the leader do not reach the API server; a real one on loopback counts."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web
from kubernetes.aio import client
from megatron_operator.controller import api_client
from megatron_operator.controller.api_client import ApiClient
from megatron_operator.controller.api_resources import JOBS
from megatron_operator.controller.fence import Fence, NotLeaderError, monotonic

JOB = {"metadata": {"name": "run", "namespace": "default", "uid": "u"}}
Respond = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """An API server that records methods and responds as the test wants."""

    def __init__(self) -> None:
        self.methods: list[str] = []
        self.arrived = asyncio.Event()
        self.respond: Respond | None = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.methods.append(request.method)
        self.arrived.set()
        if self.respond is not None and request.method != "GET":
            return await self.respond(request)
        return web.json_response({"metadata": {}})


@pytest.fixture
async def server() -> AsyncIterator[tuple[Server, str]]:
    server, application = Server(), web.Application()
    application.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    yield server, f"http://{host}:{port}"
    await runner.cleanup()


@pytest.fixture
async def api(
    server: tuple[Server, str], fence: Fence, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ApiClient]:
    async def load(client_configuration: client.Configuration) -> None:
        client_configuration.host = server[1]

    monkeypatch.setattr(api_client.config, "load_kube_config", load)
    api = await ApiClient.connect(fence)
    yield api
    await api.close()


class Clock:
    """The fence's clock, which goes on while the process is frozen."""

    frozen_for = 0.0

    def __call__(self) -> float:
        return monotonic() + self.frozen_for


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fence(clock: Clock) -> Fence:
    return Fence(clock)


async def test_a_standby_reads_but_sends_no_write(server: tuple[Server, str], api: ApiClient) -> None:
    await api.get(JOBS, "default", "run")
    for write in (api.create(JOBS, JOB), api.apply(JOBS, JOB), api.replace(JOBS, JOB), api.delete(JOBS, JOB)):
        with pytest.raises(NotLeaderError, match="lease is not held"):
            await write
    assert server[0].methods == ["GET"]


async def test_a_write_in_flight_ends_with_the_lease(
    server: tuple[Server, str], api: ApiClient, fence: Fence
) -> None:
    never = asyncio.Event()

    async def hang(_request: web.Request) -> web.StreamResponse:
        await never.wait()
        raise AssertionError

    server[0].respond = hang
    fence.open()
    write = asyncio.create_task(api.apply(JOBS, JOB))
    await server[0].arrived.wait()
    fence.close()
    with pytest.raises(TimeoutError):
        await write


async def test_a_write_in_flight_outlives_the_lease_that_it_began_with_if_that_is_renewed(
    server: tuple[Server, str], api: ApiClient, fence: Fence
) -> None:
    over = asyncio.Event()

    async def wait(_request: web.Request) -> web.StreamResponse:
        await over.wait()
        return web.json_response({"metadata": {}})

    server[0].respond = wait
    fence.open(monotonic() + 0.5)
    write = asyncio.create_task(api.apply(JOBS, JOB))
    await asyncio.wait((write, asyncio.create_task(server[0].arrived.wait())), return_when="FIRST_COMPLETED")
    fence.open(math.inf)
    asyncio.get_running_loop().call_later(0.6, over.set)
    assert await write == {"metadata": {}}


async def test_a_write_that_is_repeated_on_a_new_connection_is_checked_again(
    server: tuple[Server, str], api: ApiClient, fence: Fence, clock: Clock
) -> None:
    """aiohttp repeats a DELETE when a connection that it used before was closed: after a freeze, it was."""

    async def drop(request: web.Request) -> web.StreamResponse:
        clock.frozen_for = 60.0
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    fence.open(clock() + 7)
    await api.get(JOBS, "default", "run")
    server[0].respond = drop
    with pytest.raises(NotLeaderError):
        await api.delete(JOBS, JOB)
    assert server[0].methods == ["GET", "DELETE"]
