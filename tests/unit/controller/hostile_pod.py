"""A pod's HTTP server on loopback that sends what a test chooses, byte by byte."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class PodServer:
    """Sends `answer` to each request, as fast as the reader takes it."""

    def __init__(self, answer: Callable[[], AsyncIterator[bytes]]) -> None:
        self._answer = answer
        self.requests: list[bytes] = []
        self.sent = 0
        """Bytes that the operating system has taken."""
        self.port = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            async for part in self._answer():
                writer.write(part)
                await writer.drain()
                self.sent += len(part)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/progress"

    @asynccontextmanager
    async def running(self) -> AsyncIterator["PodServer"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()


def once(answer: bytes) -> PodServer:
    """A pod that sends these bytes and closes the connection."""

    async def parts() -> AsyncIterator[bytes]:
        yield answer

    return PodServer(parts)


def endless(head: bytes, part: bytes) -> PodServer:
    """A pod that sends `head`, then `part` without end."""

    async def parts() -> AsyncIterator[bytes]:
        yield head
        while True:
            yield part

    return PodServer(parts)


def silent_after(head: bytes) -> PodServer:
    """A pod that sends `head` and then nothing, and keeps the connection."""

    async def parts() -> AsyncIterator[bytes]:
        yield head
        await asyncio.Event().wait()

    return PodServer(parts)


def ok(body: bytes, *fields: str) -> bytes:
    """A plain answer."""
    lines = ["HTTP/1.1 200 OK", *fields, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body
