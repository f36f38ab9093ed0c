"""Reads a small document over HTTP from a server that is not trusted: a pod of some tenant.

An HTTP library reads what a server sends as fast as it is sent: interim responses without end, headers,
compressed bodies. Here every byte counts towards one limit, and one time-out covers all of it.
"""

import asyncio
import ssl
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from megatron_operator.api.errors import OperatorError

MAX_BODY_BYTES: Final = 256 << 10
MAX_HEAD_BYTES: Final = 16 << 10
_BUFFER_BYTES: Final = 32 << 10


class AnswerError(OperatorError):
    """A server answered with something that is not read. The text states what, without the server's words."""


class _Target(NamedTuple):
    host: str
    port: int
    path: str
    tls: ssl.SSLContext | None
    name: str
    """For the header Host."""


async def fetch(url: str, limit: float) -> bytes:
    """The body of the answer to `GET url`, within `limit` seconds in all.

    At most MAX_BODY_BYTES are read. Redirects are not followed, and compressed answers are refused.

    Raises:
        AnswerError: The answer is not a plain one with status 200, or it is too large.
        OSError: There is no connection, or it broke; TimeoutError after `limit` seconds.
    """
    target = _parse(url)
    async with asyncio.timeout(limit):
        reader, writer = await asyncio.open_connection(
            target.host, target.port, ssl=target.tls, limit=_BUFFER_BYTES
        )
        try:
            # Version 1.0, so that the answer ends with the connection and has no chunks.
            lines = (f"GET {target.path} HTTP/1.0", f"Host: {target.name}", "Accept-Encoding: identity")
            writer.write("".join(f"{line}\r\n" for line in (*lines, "")).encode())
            length = _body_length(await _read_head(reader))
            return await _read_body(reader, length)
        finally:
            writer.transport.abort()


def _parse(url: str) -> _Target:
    parts = urlsplit(url)
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    port = parts.port or (80 if tls is None else 443)
    return _Target(parts.hostname or "", port, path, tls, parts.netloc.rpartition("@")[2])


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise AnswerError(f"its header exceeds {MAX_HEAD_BYTES} bytes") from error
    except asyncio.IncompleteReadError as error:
        raise AnswerError("it closed the connection within the header") from error
    if len(head) > MAX_HEAD_BYTES:
        raise AnswerError(f"its header exceeds {MAX_HEAD_BYTES} bytes")
    return head


def _body_length(head: bytes) -> int | None:
    """The announced length; None for a body that ends with the connection. Raises AnswerError."""
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest[:3]
    if version not in ("HTTP/1.0", "HTTP/1.1") or not (status.isascii() and status.isdigit()):
        raise AnswerError("it does not speak HTTP")
    if status != "200":
        raise AnswerError(
            f"HTTP status {status} (redirects are not followed)"
            if status[0] == "3"
            else f"HTTP status {status}"
        )
    fields = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    if fields.get("content-encoding", "identity").lower() != "identity":
        raise AnswerError("its answer is compressed, which is refused")
    if "transfer-encoding" in fields:
        raise AnswerError("its answer to HTTP/1.0 is in chunks")
    length = fields.get("content-length")
    if length is None:
        return None
    if not (length.isascii() and length.isdigit() and len(length) <= 18):
        raise AnswerError("its Content-Length is not a number of bytes")
    if int(length) > MAX_BODY_BYTES:
        raise AnswerError(f"its answer exceeds {MAX_BODY_BYTES} bytes")
    return int(length)


async def _read_body(reader: asyncio.StreamReader, length: int | None) -> bytes:
    if length is not None:
        try:
            return await reader.readexactly(length)
        except asyncio.IncompleteReadError as error:
            raise AnswerError("it closed the connection within the answer") from error
    body = bytearray()
    while part := await reader.read(_BUFFER_BYTES):
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise AnswerError(f"its answer exceeds {MAX_BODY_BYTES} bytes")
    return bytes(body)
