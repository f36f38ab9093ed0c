"""A real Prometheus on this machine: its process, and queries to its HTTP API."""

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from testkit.waiting import wait_until

Object = dict[str, Any]


class PrometheusMissingError(Exception):
    """There is no Prometheus on PATH."""


class Prometheus:
    """The HTTP API of a server. Queries raise ValueError with Prometheus' message."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def ready(self) -> bool:
        """Whether it answers queries."""
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def query(self, expression: str, time: float | None = None) -> list[Object]:
        """The series of an instant query, now or at a Unix time."""
        return self._ask("query", {"query": expression} | ({} if time is None else {"time": str(time)}))

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[Object]:
        """The series between two Unix times, with a value every `step` seconds."""
        window = {"start": str(start), "end": str(end), "step": str(step)}
        return self._ask("query_range", {"query": expression, **window})

    def _ask(self, endpoint: str, arguments: dict[str, str]) -> list[Object]:
        body = urllib.parse.urlencode(arguments).encode()
        try:
            with urllib.request.urlopen(f"{self._url}/api/v1/{endpoint}", body, timeout=30) as answer:
                found: list[Object] = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{arguments['query']}: {error.read().decode()}") from None
        return found


def program(name: str) -> str:
    """The path of `prometheus` or `promtool`. Raises PrometheusMissingError."""
    found = shutil.which(name)
    if found is None:
        raise PrometheusMissingError(f"no {name} on PATH: it is in Debian's package prometheus")
    return found


@contextmanager
def serve(folder: Path, config: Object, *options: str) -> Iterator[Prometheus]:
    """A server with this configuration, whose database is `folder`/data. Raises PrometheusMissingError."""
    binary = program("prometheus")
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    log = folder / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [
                binary,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                "--web.listen-address=127.0.0.1:0",
                *options,
            ],
            stdout=output,
            stderr=output,
        )

    def listening() -> int | None:
        match = re.search(r"Listening on.*127\.0\.0\.1:(\d+)", log.read_text())
        return None if match is None else int(match[1])

    try:
        server = Prometheus(wait_until(lambda: f"Prometheus: {log.read_text()}", listening))
        wait_until(lambda: f"Prometheus: {log.read_text()}", server.ready)
        yield server
    finally:
        process.terminate()
        process.wait()
