"""The HTTP server. Requests are not logged: the link of the shell has a key in it."""

import asyncio
import logging
import socket
import ssl
from pathlib import Path
from typing import Any, Final

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from megatron_operator.cli.errors import CommandError

log = logging.getLogger(__name__)

REQUEST_SECONDS: Final = 10.0
"""Seconds within which a whole request must arrive: a connection counts towards the limit from its start."""
CONNECTIONS: Final = 256
"""Connections at once; one more is answered 503."""
CERTIFICATES_INTERVAL: Final = 30
"""Seconds between two checks of the certificate files: cert-manager renews them, the kubelet swaps them."""


class ImpatientProtocol(H11Protocol):
    """Closes a connection whose request takes longer than REQUEST_SECONDS; uvicorn never does.

    Between two requests, uvicorn closes it after 5 s.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a request, if there is any."""
        super().data_received(data)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._forget()
        super().connection_lost(exc)

    def _expect(self) -> None:
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._forget()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 takes a free one. Raises CommandError.

    `::` is all addresses: of IPv4 too, and of IPv4 alone where there is no IPv6.
    """
    dual_stack = host == "::" and socket.has_dualstack_ipv6()
    try:
        there = "0.0.0.0" if host == "::" and not dual_stack else host
        family, *_, address = socket.getaddrinfo(there, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family)
        if dual_stack:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        fix = "choose another with --port, 0 for a free one, or --address"
        raise CommandError(f"{host}:{port}", f"cannot listen: {error}", fix) from None
    return listening


class Certificates:
    """Certificate and key of a server, loaded again when the files change: uvicorn loads them once."""

    def __init__(self, config: uvicorn.Config, files: tuple[Path, Path]) -> None:
        self._config = config
        self._files = files
        self._loaded = self._modified()

    async def reload(self) -> None:
        """Load them if they have changed. Connections that are open keep theirs."""
        assert self._config.ssl is not None
        try:
            modified = self._modified()
            if modified == self._loaded:
                return
            # First of its own: a key that does not match would leave the server's context without one.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self._files)
            self._config.ssl.load_cert_chain(*self._files)
            self._loaded = modified
        except OSError as error:  # they may be read while they are written
            log.warning("the certificate cannot be loaded, and is tried again: %s", error)

    def _modified(self) -> tuple[int, ...]:
        return tuple(file.stat().st_mtime_ns for file in self._files)


def server(app: ASGIApp, tls: tuple[Path, Path] | None) -> uvicorn.Server:
    """The server; its `serve([socket])` ends with SIGINT or SIGTERM. `tls` are certificate and key."""
    certificate, key = (None, None) if tls is None else tls
    config = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        http=ImpatientProtocol,
        ws="none",
        timeout_graceful_shutdown=5,
        limit_concurrency=CONNECTIONS,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        timeout_notify=CERTIFICATES_INTERVAL,
    )
    if tls is not None:
        config.callback_notify = Certificates(config, tls).reload
    return uvicorn.Server(config)
