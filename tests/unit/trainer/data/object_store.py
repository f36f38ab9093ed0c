"""A server of the S3 protocol on loopback, and a network in front of it that can be disturbed."""

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[4]
BUCKET = "corpus"
KEY, SECRET = "reader-of-the-corpus", "a secret of the tests"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}


def program() -> str:
    """The versitygw that the local cluster builds, or the one on PATH."""
    built = ROOT / ".cluster" / "bin" / "versitygw"
    found = str(built) if built.exists() else shutil.which("versitygw")
    if found is None:
        pytest.skip("no versitygw: neither .cluster/bin/versitygw (`localcluster binaries`) nor one on PATH")
    return found


class ObjectStore:
    """A store with one bucket; its files are below `folder`."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder / BUCKET
        self.port = port
        self.endpoint = f"http://127.0.0.1:{port}"

    def put(self, name: str, data: bytes) -> None:
        """Write an object."""
        self.filesystem.pipe_file(f"{BUCKET}/{name}", data)

    def put_folder(self, folder: Path, name: str) -> None:
        """Write the files of a folder."""
        self.filesystem.pipe({f"{BUCKET}/{name}/{path.name}": path.read_bytes() for path in folder.iterdir()})

    @cached_property
    def filesystem(self) -> Any:
        """A client of the store, of the tests alone."""
        import s3fs

        return s3fs.S3FileSystem(endpoint_url=self.endpoint, key=KEY, secret=SECRET, skip_instance_cache=True)


def free_port() -> int:
    """A port of loopback that nothing listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def running(folder: Path) -> Iterator[ObjectStore]:
    """Run a store whose root user has KEY and SECRET."""
    (folder / "root").mkdir(parents=True)
    port = free_port()
    words = [program(), "--port", f"127.0.0.1:{port}", "--access", KEY, "--secret", SECRET, "--quiet"]
    words += ["posix", "--sidecar", str(folder / "sidecar"), str(folder / "root")]
    (folder / "sidecar").mkdir()
    environment = {"HOME": str(folder), "PATH": os.environ["PATH"]}
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(words, stdout=log, stderr=log, env=environment)
    try:
        end = time.monotonic() + 60
        while not _listens(port):
            assert server.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < end, "the store does not start"
        store = ObjectStore(folder / "root", port)
        store.filesystem.mkdir(BUCKET)
        yield store
    finally:
        server.terminate()
        server.wait()


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


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
            upstream = HTTPConnection("127.0.0.1", store.port)
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

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    proxy.daemon_threads = True
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{proxy.server_address[1]}"
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()
