"""The HTTP server towards clients that do not finish what they begin, and its certificate."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from localcluster.pki import Authority, Certificate
from megatron_operator.ui import server
from megatron_operator.ui.access import KeyAccess
from megatron_operator.ui.app import Settings, application
from megatron_operator.ui.published import PublishedRecipes

from testkit.example_runs import ExampleRuns
from testkit.waiting import wait_until

WHOLE = b"GET /healthz HTTP/1.1\r\nHost: page\r\n\r\n"
UNFINISHED = {
    "nothing": b"",
    "half a header": b"GET /healthz HTTP/1.1\r\nHost:",
    "half a form": b"POST /sign-in HTTP/1.1\r\nHost: page\r\nContent-Length: 9\r\n\r\ntoken",
    "a second request that stops": WHOLE + b"GET /healthz HTTP/1.1\r\n",
}


@contextlib.asynccontextmanager
async def served(tls: tuple[Path, Path] | None = None) -> AsyncIterator[int]:
    """The port of a page without runs."""
    app = application(Settings(ExampleRuns([]), KeyAccess("key"), PublishedRecipes(None, None)))
    listening, serving = server.listen("127.0.0.1", 0), server.server(app, tls)
    listening.listen()
    task = asyncio.create_task(serving.serve([listening]))
    try:
        yield listening.getsockname()[1]
    finally:
        serving.should_exit = True
        await task


@pytest.mark.parametrize("dual_stack", [True, False])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_all_addresses_are_those_of_both_kinds_or_of_ipv4_where_there_is_no_ipv6(
    dual_stack: bool, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if dual_stack and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: dual_stack)
    with server.listen("::", 0) as listening:
        listening.listen()
        address = (host, listening.getsockname()[1])
        if host == "::1" and not dual_stack:
            with pytest.raises(OSError, match=r"refused|not supported"):
                socket.create_connection(address, timeout=30)
        else:
            socket.create_connection(address, timeout=30).close()


async def connect(port: int, sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    await writer.drain()
    return reader, writer


async def answer(port: int) -> bytes:
    reader, writer = await connect(port, WHOLE)
    line = await reader.readline()
    writer.close()
    return line


@pytest.mark.parametrize("sent", UNFINISHED.values(), ids=UNFINISHED)
async def test_a_request_that_does_not_arrive_loses_its_connection(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.3)
    async with served() as port:
        reader, writer = await connect(port, sent)
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionError):
                await reader.read()
        writer.close()


async def test_connections_without_a_request_keep_others_out_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS", 4)
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.3)
    async with served() as port:
        idle = [await connect(port, b"") for _ in range(8)]
        async with asyncio.timeout(60):
            for reader, _ in idle:
                with contextlib.suppress(ConnectionError):
                    await reader.read()
        assert await answer(port) == b"HTTP/1.1 200 OK\r\n"


async def test_a_request_in_time_is_answered_however_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 60.0)
    async with served() as port:
        reader, writer = await connect(port, WHOLE)
        for _ in range(3):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert await reader.readexactly(2) == b"ok"
            writer.write(WHOLE)
        writer.close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """With a certificate of the page."""
    authority = Authority(tmp_path)
    authority.create()
    authority.sign(Certificate("page", "page", hosts=("127.0.0.1",)))
    return authority


async def serves(port: int, certificate: Path) -> None:
    """Wait until a new connection gets this certificate."""
    expected = ssl.PEM_cert_to_DER_cert(certificate.read_text())

    def got() -> bool:
        found = ssl.get_server_certificate(("127.0.0.1", port), timeout=60)
        return ssl.PEM_cert_to_DER_cert(found) == expected

    await asyncio.to_thread(wait_until, "the certificate", got)


async def test_a_renewed_certificate_is_served(monkeypatch: pytest.MonkeyPatch, authority: Authority) -> None:
    monkeypatch.setattr(server, "CERTIFICATES_INTERVAL", 0)
    async with served((authority.crt("page"), authority.key("page"))) as port:
        await serves(port, authority.crt("page"))
        authority.crt("page").unlink()
        authority.sign(Certificate("page", "page", hosts=("127.0.0.1",)))
        await serves(port, authority.crt("page"))


async def test_a_certificate_without_its_key_is_not_served(
    monkeypatch: pytest.MonkeyPatch, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "CERTIFICATES_INTERVAL", 0)
    authority.sign(Certificate("other", "other", hosts=("127.0.0.1",)))
    (earlier := authority.directory / "earlier.crt").write_bytes(authority.crt("page").read_bytes())
    async with served((authority.crt("page"), authority.key("page"))) as port:
        await serves(port, earlier)
        authority.crt("page").write_bytes(authority.crt("other").read_bytes())
        with caplog.at_level(logging.WARNING):
            await asyncio.to_thread(wait_until, "the warning", lambda: caplog.messages)
        await serves(port, earlier)
        authority.key("page").write_bytes(authority.key("other").read_bytes())
        await serves(port, authority.crt("other"))
