"""A server of the S3 protocol."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from testkit.errors import CommandFailedError
from testkit.kubectl import find_tool
from testkit.ports import LOOPBACK, free_port

BUCKET = "corpus"
KEY, SECRET = "reader-of-the-corpus", "a secret of the tests"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
START = 60.0
"""Seconds in which the server must listen."""


class ObjectStore:
    """A store with one bucket; its files are below `folder`."""

    def __init__(self, folder: Path, address: str, port: int) -> None:
        self.folder = folder / BUCKET
        self.port = port
        self.endpoint = f"http://{address}:{port}"

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


@contextmanager
def running(folder: Path, address: str = LOOPBACK) -> Iterator[ObjectStore]:
    """Run a store whose root user has KEY and SECRET.

    Args:
        folder: What it writes; is created.
        address: An address of this machine to listen at.

    Raises:
        CommandFailedError: There is no versitygw, or it does not start.
    """
    program = find_tool("versitygw")
    (folder / "root").mkdir(parents=True)
    port = free_port(address)
    words = [program, "--port", f"{address}:{port}", "--access", KEY, "--secret", SECRET, "--quiet"]
    words += ["posix", "--sidecar", str(folder / "sidecar"), str(folder / "root")]
    (folder / "sidecar").mkdir()
    environment = {"HOME": str(folder), "PATH": os.environ["PATH"]}
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(words, stdout=log, stderr=log, env=environment)
    try:
        end = time.monotonic() + START
        while not _listens(address, port):
            if server.poll() is not None or time.monotonic() > end:
                raise CommandFailedError(f"versitygw does not start: {(folder / 'log').read_text()}")
        store = ObjectStore(folder / "root", address, port)
        store.filesystem.mkdir(BUCKET)
        yield store
    finally:
        server.terminate()
        server.wait()


def _listens(address: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((address, port), timeout=1):
        return True
    return False
