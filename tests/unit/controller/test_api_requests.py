"""Requests to the API server are counted by resource and status code."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import pytest
from kubernetes.aio import client
from megatron_operator.controller import api_client
from megatron_operator.controller.api_client import ApiClient, ApiError
from megatron_operator.controller.api_resources import NODES, PODS, RECIPES
from megatron_operator.controller.fence import Fence, NotLeaderError
from prometheus_client import REGISTRY

from testkit.api_stand_in import ApiStandIn


@pytest.fixture
def server() -> Iterator[ApiStandIn]:
    with ApiStandIn().running() as running:
        yield running


@pytest.fixture
async def api(server: ApiStandIn) -> AsyncIterator[ApiClient]:
    connection = ApiClient(client.ApiClient(client.Configuration(host=server.url)), Fence())
    yield connection
    await connection.close()


def count(method: str, plural: str, code: str) -> float:
    labels = {"method": method, "plural": plural, "code": code}
    return REGISTRY.get_sample_value("megatron_operator_api_requests_total", labels) or 0.0


async def test_answers_count_by_resource_and_code(api: ApiClient) -> None:
    codes = {"megatronrecipes": "200", "pods": "200", "nodes": "404"}
    before = {plural: count("GET", plural, code) for plural, code in codes.items()}
    missing = count("GET", "megatronrecipes", "404")
    await api.find(RECIPES, None)
    await api.find(PODS, "research")
    assert await api.get(RECIPES, "research", "absent") is None
    with pytest.raises(ApiError):
        await api.find(NODES, None)
    after = {plural: count("GET", plural, code) for plural, code in codes.items()}
    assert after == {plural: number + 1 for plural, number in before.items()}
    assert count("GET", "megatronrecipes", "404") == missing + 1


async def test_a_request_that_the_fence_refuses_has_no_code(api: ApiClient) -> None:
    before = count("POST", "pods", "none")
    with pytest.raises(NotLeaderError):
        await api.create(PODS, {"metadata": {"namespace": "research", "name": "a"}})
    assert count("POST", "pods", "none") == before + 1


async def test_a_request_without_an_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait_for_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(wait_for_the_end, "127.0.0.1", 0)
    host, port = silent.sockets[0].getsockname()
    connection = ApiClient(client.ApiClient(client.Configuration(host=f"http://{host}:{port}")))
    monkeypatch.setattr(api_client, "TIMEOUT", 0.01)
    with pytest.raises(TimeoutError, match="GET /api/v1/namespaces/research/pods/a: no answer in time"):
        await connection.get(PODS, "research", "a")
    await connection.close()
    silent.close()
    await silent.wait_closed()


async def test_a_group_that_is_not_served_costs_one_request_which_counts(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = count("GET", "apis", "404")
    with pytest.raises(ApiError):
        await api.served("resource.k8s.io")
    assert count("GET", "apis", "404") == before + 1
    versions = [{"version": "v1"}, {"version": "v1beta2"}]
    answers = {
        "/apis": {"groups": [{"name": "resource.k8s.io", "versions": versions}]},
        "/apis/resource.k8s.io/v1": {"resources": [{"name": "resourceslices"}]},
        "/apis/resource.k8s.io/v1beta2": {},
    }
    asked: list[str] = []

    async def request(_method: str, path: str) -> object:
        asked.append(path)
        return answers[path]

    monkeypatch.setattr(api, "_request", request)
    assert await api.served("absent.example.com") == {}
    assert asked == ["/apis"]
    served = await api.served("resource.k8s.io")
    assert served == {"v1": {"resourceslices"}, "v1beta2": frozenset()}


async def test_a_watch_takes_events_of_any_length_however_they_are_split() -> None:
    """By default aiohttp's lines have 128 KiB at most, and a pod may have a mebibyte of annotations."""
    events = [
        {"type": "ADDED", "object": {"metadata": {"name": name, "annotations": {"large": "x" * size}}}}
        for name, size in (("small", 1), ("large", 3 * 2**20), ("last", 1))
    ]
    body = b"".join(json.dumps(each).encode() + b"\n" for each in events)
    asked = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split()[1].decode())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")
        for start in range(0, len(body), 50_001):
            writer.write(body[start : start + 50_001])
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    connection = ApiClient(client.ApiClient(client.Configuration(host=f"http://{host}:{port}")))
    found = [each async for each in connection.watch(PODS, "5", 60, namespace="research", labels="a=b")]
    await connection.close()
    server.close()
    await server.wait_closed()
    assert found == events
    (path,) = asked
    assert path.startswith("/api/v1/namespaces/research/pods?watch=true&resourceVersion=5&")
    assert "labelSelector=a%3Db" in path


async def test_requests_do_not_wait_for_the_connections_of_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator that serves 50 namespaces has more watches than a client has connections by default."""
    watches = 150
    watching, open_watches = asyncio.Event(), 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_watches
        request = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")
        if b"watch=true" in request:
            open_watches += 1
            if open_watches == watches:
                watching.set()
            await reader.read()
        else:
            writer.write(b'{"kind": "Pod"}')
        writer.close()

    async def configure(client_configuration: client.Configuration) -> None:
        client_configuration.host = f"http://{host}:{port}"

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=watches)
    host, port = server.sockets[0].getsockname()
    monkeypatch.setattr("kubernetes.aio.config.load_kube_config", configure)
    connection = await ApiClient.connect()

    async def watch(number: int) -> None:
        async for _ in connection.watch(PODS, "5", 60, namespace=f"team-{number}"):
            pass

    tasks = [asyncio.create_task(watch(number)) for number in range(watches)]
    async with asyncio.timeout(60):
        await watching.wait()
        assert await connection.get(PODS, "team-0", "run-master-0") == {"kind": "Pod"}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await connection.close()
    server.close()
    await server.wait_closed()
