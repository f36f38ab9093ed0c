"""The HTTP server. Requests are not logged: the link of the shell has a key in it."""

import socket
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from megatron_operator.cli.errors import CommandError


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 takes a free one. Raises CommandError."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        fix = "choose another with --port, 0 for a free one, or --address"
        raise CommandError(f"{host}:{port}", f"cannot listen: {error}", fix) from None
    return listening


def server(app: ASGIApp, tls: tuple[Path, Path] | None) -> uvicorn.Server:
    """The server; its `serve([socket])` ends with SIGINT or SIGTERM. `tls` are certificate and key."""
    certificate, key = (None, None) if tls is None else tls
    config = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=5,
        limit_concurrency=256,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    return uvicorn.Server(config)
