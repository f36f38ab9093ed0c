"""A headless Chromium, driven by its own DevTools protocol: pages, keys, screenshots."""

import asyncio
import base64
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

Object = dict[str, Any]
_FLAGS: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--remote-debugging-port=0", "--disable-background-networking", "--disable-component-update",
    "--hide-scrollbars",
)  # fmt: skip


class BrowserMissingError(Exception):
    """There is no Chromium on PATH."""


class Tab:
    """One page of the browser. All methods raise RuntimeError where the browser reports an error."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._last = 0

    async def call(self, method: str, **parameters: Any) -> Object:
        """The result of a method of the protocol. Raises RuntimeError for an error."""
        self._last += 1
        await self._socket.send_json({"id": self._last, "method": method, "params": parameters})
        while True:
            message = json.loads((await self._socket.receive()).data)
            if message.get("id") == self._last:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return dict(message["result"])

    async def open(self, url: str, width: int, height: int, *, dark: bool) -> None:
        """Load a page in a window of this size in CSS pixels; returns when it is loaded."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        await self.call("Page.enable")
        await self.call("Page.navigate", url=url)
        await self.evaluate(
            "new Promise(done => document.readyState === 'complete' && location.href !== 'about:blank'"
            " ? done() : addEventListener('load', done))"
        )

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript, awaited. Raises RuntimeError when it throws."""
        found = await self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    async def press(self, key: str, code: int) -> None:
        """Press and release a key, for example `Tab` with its Windows code 9."""
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            await self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text
            )

    async def screenshot(self, *, whole: bool = False) -> bytes:
        """The window as PNG, or the whole page."""
        found = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(found["data"])


@asynccontextmanager
async def chromium() -> AsyncIterator[Tab]:
    """A browser with one page, ended afterwards. Raises BrowserMissingError."""
    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if binary is None:
        raise BrowserMissingError("no chromium on PATH; install the package chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            binary, *_FLAGS, f"--user-data-dir={profile}", "about:blank",
            stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert process.stderr is not None
        try:
            async with asyncio.timeout(60):
                line = b""
                while b"DevTools listening on" not in line:
                    line = await process.stderr.readline()
            # Not from the file DevToolsActivePort, which may be empty still.
            port = urlsplit(line.split()[-1].decode()).port
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    pages = [each for each in await answer.json() if each["type"] == "page"]
                async with session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    yield Tab(socket)
        finally:
            process.terminate()
            await process.wait()
