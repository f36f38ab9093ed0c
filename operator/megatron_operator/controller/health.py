"""Answers the kubelet's probes, in a standby as in the leader."""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web


class Health:
    """Serves /healthz and /readyz: 200 while the check returns None, else 503 with what it returns."""

    def __init__(self, port: int, alive: Callable[[], str | None], ready: Callable[[], str | None]) -> None:
        self._port = port
        self._checks = {"/healthz": alive, "/readyz": ready}

    async def run(self) -> None:
        """Serve until cancelled. Raises OSError when the port is in use."""
        application = web.Application()
        for path, check in self._checks.items():
            application.router.add_get(path, _answer(check))
        runner = web.AppRunner(application)
        await runner.setup()
        try:
            await web.TCPSite(runner, port=self._port).start()
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()


def _answer(check: Callable[[], str | None]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def respond(_request: web.Request) -> web.Response:
        problem = check()
        return web.Response(text=problem or "ok", status=200 if problem is None else 503)

    return respond
