"""Prometheus reaches the operator's metrics in a cluster of IPv4 and in one of IPv6."""

import http.client
import socket

import pytest
from megatron_operator.controller.main import serve_metrics


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_metrics_are_on_addresses_of_both_kinds(host: str) -> None:
    if host == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    server, thread = serve_metrics(0)
    connection = http.client.HTTPConnection(host, server.server_port, timeout=30)
    connection.request("GET", "/metrics")
    assert connection.getresponse().status == 200
    connection.close()
    server.shutdown()
    server.server_close()
    thread.join()
