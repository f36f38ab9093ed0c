"""The tests' client of the API server repeats a request when the server asks for it, and never otherwise."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from urllib3.exceptions import HTTPError

from testkit.api_server import Api
from testkit.errors import ApiError
from testkit.operator_process import write_kubeconfig


class Server(HTTPServer):
    """Answers with one status after the other."""

    def __init__(self, statuses: list[int]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.statuses = statuses
        self.bodies: list[Any] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        status = self.server.statuses.pop(0)
        content = json.dumps({"message": f"answer {status}"}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        if status == 429:
            self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server([])
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def api(server: Server, tmp_path: Path) -> Api:
    write_kubeconfig(tmp_path / "config", f"http://127.0.0.1:{server.server_port}", "token")
    return Api(tmp_path / "config")


def test_a_request_is_sent_again_when_the_server_asks_for_it(server: Server, api: Api) -> None:
    server.statuses = [429, 429, 201]
    assert api.request("POST", "/objects", {"a": 1}) == {"message": "answer 201"}
    assert server.bodies == [{"a": 1}] * 3


@pytest.mark.parametrize("status", [409, 500, 503])
def test_other_errors_are_raised_at_once(server: Server, api: Api, status: int) -> None:
    server.statuses = [status]
    with pytest.raises(ApiError) as error:
        api.request("POST", "/objects", {"a": 1})
    assert error.value.status == status
    assert len(server.bodies) == 1


def test_a_server_that_never_has_time_is_reported(server: Server, api: Api) -> None:
    server.statuses = [429] * 11
    with pytest.raises(ApiError) as error:
        api.request("POST", "/objects", {"a": 1})
    assert error.value.status == 429
    assert server.statuses == []


def test_a_server_that_is_gone_is_an_error_of_urllib3(tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), Handler) as unused:
        port = unused.server_port
    write_kubeconfig(tmp_path / "config", f"http://127.0.0.1:{port}", "token")
    with pytest.raises(HTTPError):
        Api(tmp_path / "config").request("POST", "/objects", {"a": 1})
