"""What a pod that is not trusted can make the operator read."""

import gzip
import tracemalloc

import pytest
from megatron_operator.controller.pod_http import MAX_BODY_BYTES, MAX_HEAD_BYTES, AnswerError, fetch

from tests.unit.controller.hostile_pod import PodServer, endless, ok, once, silent_after

PLENTY = 60.0
"""Seconds; no test waits for it."""
SOCKET_BUFFERS = 16 << 20
"""More than the operating system buffers between two loopback sockets."""
ENDLESS = {
    "a body without end": (b"HTTP/1.1 200 OK\r\n\r\n", b" " * 65536),
    "a body that is longer than announced": (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", b" " * 65536),
    "headers without end": (b"HTTP/1.1 200 OK\r\n", b"A: b\r\n" * 10_000),
    "one header without end": (b"HTTP/1.1 200 OK\r\nA: ", b"b" * 65536),
    "interim responses without end": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 4096),
    "chunks of one byte without end": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"1\r\n \r\n" * 10_000,
    ),
    "another protocol without end": (
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        b" " * 65536,
    ),
}


async def refusal(pod: PodServer) -> str:
    async with pod.running():
        with pytest.raises(AnswerError) as refused:
            await fetch(pod.url, PLENTY)
    return str(refused.value)


@pytest.mark.parametrize("fields", [(), ("Content-Encoding: identity",)])
async def test_a_plain_answer_is_read(fields: tuple[str, ...]) -> None:
    async with once(ok(b'{"schema": 1}', *fields)).running() as pod:
        assert await fetch(pod.url, PLENTY) == b'{"schema": 1}'
    assert b"Accept-Encoding: identity\r\n" in pod.requests[0]


async def test_an_answer_of_the_largest_size_is_read() -> None:
    body = b" " * MAX_BODY_BYTES
    for answer in (ok(body), b"HTTP/1.0 200 OK\r\n\r\n" + body):
        async with once(answer).running() as pod:
            assert await fetch(pod.url, PLENTY) == body


@pytest.mark.parametrize("name", ENDLESS)
async def test_an_answer_without_end_is_left_early(name: str) -> None:
    async with endless(*ENDLESS[name]).running() as pod:
        tracemalloc.start()
        try:
            assert await fetch(pod.url, PLENTY) == b" " * 9
        except AnswerError:
            pass
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    assert pod.sent < SOCKET_BUFFERS
    assert peak < 4 * (MAX_BODY_BYTES + MAX_HEAD_BYTES)


async def test_an_answer_that_announces_too_much_is_refused_unread() -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {400 << 20}\r\n\r\n".encode()
    assert await refusal(silent_after(head)) == f"its answer exceeds {MAX_BODY_BYTES} bytes"


async def test_a_compressed_answer_is_refused() -> None:
    bomb = gzip.compress(b" " * (8 << 20))
    assert "compressed" in await refusal(once(ok(bomb, "Content-Encoding: gzip")))


async def test_redirects_are_not_followed() -> None:
    async with once(ok(b"{}")).running() as elsewhere:
        moved = f"HTTP/1.1 302 Found\r\nLocation: {elsewhere.url}\r\nContent-Length: 0\r\n\r\n".encode()
        assert await refusal(once(moved)) == "HTTP status 302 (redirects are not followed)"
        assert elsewhere.requests == []


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", "HTTP status 503"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "HTTP status 204"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "it does not speak HTTP"),
        (b"HTTP/1.1 \xb2\xb2\xb2 OK\r\n\r\n", "it does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\n", "it closed the connection within the header"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{}", "it closed the connection within the answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}", "its Content-Length is not a number of bytes"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n{}",
            "its Content-Length is not a number of bytes",
        ),
        (
            b"HTTP/1.1 200 OK\r\nA: " + b"b" * MAX_HEAD_BYTES + b"\r\n\r\n{}",
            f"its header exceeds {MAX_HEAD_BYTES} bytes",
        ),
    ],
)
async def test_an_answer_that_is_not_plain_is_refused(answer: bytes, text: str) -> None:
    assert await refusal(once(answer)) == text


@pytest.mark.parametrize(
    "head", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{"]
)
async def test_an_answer_that_does_not_end_ends_with_the_time_limit(head: bytes) -> None:
    async with silent_after(head).running() as pod:
        with pytest.raises(TimeoutError):
            await fetch(pod.url, 0.05)
