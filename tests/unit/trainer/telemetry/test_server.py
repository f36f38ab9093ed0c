"""The progress server under clients that do not behave."""

import errno
import http.client
import json
import os
import socket
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from megatron_contract.progress import ProgressReport
from megatron_trainer.telemetry import server as server_module
from megatron_trainer.telemetry.server import MAX_CONNECTIONS, ProgressServer

PATIENCE = 60.0
"""Seconds until a test that would hang fails."""


@pytest.fixture
def server() -> Iterator[ProgressServer]:
    server = ProgressServer(0, lambda: ProgressReport(1, "training", iteration=7))
    server.start()
    yield server
    server.shutdown()
    server.server_close()


def connect(server: ProgressServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server_port), timeout=PATIENCE)


def progress(server: ProgressServer) -> int:
    url = f"http://127.0.0.1:{server.server_port}/progress"
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return int(json.load(answer)["iteration"])


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_server_answers_on_addresses_of_both_kinds(server: ProgressServer, host: str) -> None:
    if host == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    connection = http.client.HTTPConnection(host, server.server_port, timeout=PATIENCE)
    connection.request("GET", "/progress")
    assert json.load(connection.getresponse())["iteration"] == 7
    connection.close()


def test_a_machine_without_ipv6_listens_on_addresses_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    create = socket.create_server

    def reject(address: tuple[str, int], **options: Any) -> socket.socket:
        if options.get("family") == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        return create(address, **options)

    monkeypatch.setattr(socket, "create_server", reject)
    server = ProgressServer(0, lambda: ProgressReport(1, "training", iteration=7))
    server.start()
    assert progress(server) == 7
    server.shutdown()
    server.server_close()


def threads() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def test_a_thousand_connections_leave_the_server_answering_with_bounded_threads(
    server: ProgressServer,
) -> None:
    kept = []
    try:
        for number in range(1000):
            kept.append(connect(server))
            if number % 100 == 99:
                assert progress(server) == 7
                assert server.connections <= MAX_CONNECTIONS
                assert threads() <= MAX_CONNECTIONS + 1
    finally:
        for each in kept:
            each.close()


def test_the_oldest_connection_is_ended_for_a_new_one(server: ProgressServer) -> None:
    oldest = connect(server)
    oldest.sendall(b"GET /progress HTTP/1.0\r\n")
    younger = [connect(server) for _ in range(MAX_CONNECTIONS)]
    assert oldest.recv(1) == b""
    assert progress(server) == 7
    for each in (oldest, *younger):
        each.close()


@pytest.mark.parametrize("sent", [b"", b"GET /pro", b"GET /progress HTTP/1.0\r\nA: b\r\n"])
def test_a_request_that_does_not_end_is_ended_by_the_server(
    server: ProgressServer, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "CONNECTION_SECONDS", 0.0)
    slow = connect(server)
    slow.sendall(sent)
    assert slow.recv(1) == b"", "nothing else ends a connection that is neither finished nor pushed out"
    slow.close()


def test_a_client_that_does_not_read_its_answer_does_not_keep_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "CONNECTION_SECONDS", PATIENCE)
    # More than the operating system buffers between two loopback sockets.
    monkeypatch.setattr(ProgressReport, "to_json", lambda _: {"message": "x" * (16 << 20)})
    server = ProgressServer(0, lambda: ProgressReport(1, "training"))
    server.start()
    deaf = connect(server)
    deaf.sendall(b"GET /progress HTTP/1.0\r\n\r\n")
    assert deaf.recv(1) == b"H"
    monkeypatch.setattr(server_module, "CONNECTION_SECONDS", 0.0)
    with server._changed:
        assert server._changed.wait_for(lambda: not server._open, PATIENCE)
    deaf.close()
    server.shutdown()
    server.server_close()
