"""A network in front of an object store that can be disturbed."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from testkit.object_store import LOOPBACK, ObjectStore

Disturbance = Callable[[str], "int | None"]
"""Request line and range -> status to answer with, -1 to cut the answer in half, None to pass it on."""


@contextmanager
def disturbed(store: ObjectStore, disturbance: Disturbance) -> Iterator[str]:
    """Run a proxy before the store. Returns its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._pass_on()

        def do_HEAD(self) -> None:
            self._pass_on()

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def _pass_on(self) -> None:
            status = disturbance(f"{self.command} {self.path} {self.headers.get('Range', '')}")
            if status is not None and status > 0:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            upstream = HTTPConnection(LOOPBACK, store.port)
            with suppress(HTTPException):
                # The signature is of the name that the client used.
                upstream.request(self.command, self.path, headers=dict(self.headers))
                answer = upstream.getresponse()
                data = answer.read()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "connection", "server", "date"):
                        self.send_header(name, value)
                self.end_headers()
                if status == -1:
                    self.wfile.write(data[: len(data) // 2])
                    self.close_connection = True
                    return
                self.wfile.write(data)
            upstream.close()

    proxy = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    proxy.daemon_threads = True
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{proxy.server_address[1]}"
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()
