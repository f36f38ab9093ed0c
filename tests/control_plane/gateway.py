"""A proxy between operator and API server: records requests, and can interfere after each write."""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import AsyncIterator, Callable

from aiohttp import ClientResponse, ClientSession, ClientTimeout, TCPConnector, web

WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_HOP = frozenset({"connection", "transfer-encoding", "content-length", "host", "keep-alive"})


class Gateway:
    """Forwards plain HTTP on loopback to the API server, with the caller's own token."""

    def __init__(self, server: str, ca_file: str) -> None:
        self._server = server
        self._ssl = ssl.create_default_context(cafile=ca_file)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="gateway")
        self.url = ""
        """Set by start()."""
        self.writes: list[tuple[str, str]] = []
        """Method and path of every write since the last reset."""
        self.reads: list[str] = []
        """Path of every read since the last reset; watches are none."""
        self.hidden: str | None = None
        """Paths with this prefix answer 404."""
        self.after_write: Callable[[], None] | None = None
        """Called after the API server has carried out a write, before its answer is forwarded."""
        self.answers: list[tuple[str, str, int]] = []
        """Method, path and status of every write since the last reset that the API server has answered."""
        self.cut = False
        """Nothing is forwarded in either direction; requests arrive once it is False again. See cut_off()."""
        self._unanswered = 0
        self.held_path: str | None = None
        """Writes to paths with this end wait until it is None."""
        self.holding = threading.Event()
        """Set when a write is held."""

    def start(self) -> str:
        """Start serving. Returns the URL."""
        self._thread.start()
        self.url = asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(10)
        return self.url

    def stop(self) -> None:
        """Stop serving."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def cut_off(self) -> None:
        """Cut the connection, and forget the answers to writes that were forwarded before."""
        asyncio.run_coroutine_threadsafe(self._cut_off(), self._loop).result(60)

    async def _cut_off(self) -> None:
        self.cut = True
        while self._unanswered:
            await asyncio.sleep(0.01)
        self.answers = []

    def reset(self) -> None:
        """Forget the writes and stop interfering."""
        self.writes = []
        self.reads = []
        self.answers = []
        self.after_write = None
        self.hidden = None
        self.cut = False
        self.held_path = None
        self.holding.clear()

    async def _serve(self) -> str:
        self._session = ClientSession(
            connector=TCPConnector(ssl=self._ssl, limit=0),
            timeout=ClientTimeout(total=None),
            auto_decompress=False,
        )
        application = web.Application(client_max_size=16 << 20)
        application.router.add_route("*", "/{path:.*}", self._forward)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}"

    async def _close(self) -> None:
        await self._runner.cleanup()
        await self._session.close()
        # aiohttp leaves handlers of open connections, which the end of the loop would report as destroyed.
        handlers = asyncio.all_tasks() - {asyncio.current_task()}
        for task in handlers:
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        if self.hidden is not None and request.path.startswith(self.hidden):
            return web.Response(status=404, text="404 page not found\n")
        if request.method == "GET" and "watch" not in request.query:
            self.reads.append(request.path)
        body = await request.read()
        await self._wait(request)
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP}
        try:
            async with self._answer(request, body, headers) as answer:
                if request.method in WRITES and self.after_write is not None and answer.ok:
                    await asyncio.to_thread(self.after_write)
                kept = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP}
                response = web.StreamResponse(status=answer.status, headers=kept)
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    while self.cut:
                        await asyncio.sleep(0.05)
                    await response.write(chunk)
                await response.write_eof()
                return response
        except OSError as error:
            return web.Response(status=502, text=f"the API server is unavailable: {error}")

    @contextlib.asynccontextmanager
    async def _answer(
        self, request: web.Request, body: bytes, headers: dict[str, str]
    ) -> AsyncIterator[ClientResponse]:
        """The API server's answer to a request; that to a write is recorded."""
        write = request.method in WRITES
        self._unanswered += write
        try:
            answer = await self._session.request(
                request.method, self._server + request.raw_path, data=body or None, headers=headers
            )
            if write:
                self.writes.append((request.method, request.path))
                self.answers.append((request.method, request.path, answer.status))
        finally:
            self._unanswered -= write
        async with answer:
            yield answer

    async def _wait(self, request: web.Request) -> None:
        """Hold a request back while the connection is cut, or its path is held."""
        while (held := self._is_held(request)) or self.cut:
            if held:
                self.holding.set()
            await asyncio.sleep(0.05)

    def _is_held(self, request: web.Request) -> bool:
        path = self.held_path
        return path is not None and request.method in WRITES and request.path.endswith(path)
