"""A replica that stands by answers reviews: from when it is ready until none is sent to it any more."""

import http.client
import json
import os
import signal
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from localcluster.pki import Authority, Certificate
from localcluster.ports import free_port
from megatron_operator.controller.webhook import PATH

from testkit.operator_process import OperatorProcess
from testkit.waiting import wait_until

HOST = "127.0.0.1"
REVIEW = json.dumps({"request": {"uid": "u", "namespace": "of-others"}})


@dataclass
class Standby:
    """The process, and its ports."""

    process: OperatorProcess
    health: int
    webhook: int
    trusting: ssl.SSLContext

    def ready(self) -> bool:
        """Whether the kubelet counts it as ready."""
        connection = http.client.HTTPConnection(HOST, self.health, timeout=10)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except ConnectionError:
            return False
        finally:
            connection.close()

    def answers(self) -> bool:
        """Whether it answers a review. A new connection each time, as of an API server that has none yet."""
        connection = http.client.HTTPSConnection(HOST, self.webhook, timeout=10, context=self.trusting)
        try:
            connection.request("POST", PATH, REVIEW)
            return bool(json.load(connection.getresponse())["response"]["allowed"])
        except (ConnectionError, http.client.RemoteDisconnected, ssl.SSLEOFError):
            return False
        finally:
            connection.close()


@pytest.fixture
def standby(kubeconfig: Path, tmp_path: Path) -> Iterator[Standby]:
    """A replica that is never elected: this API server knows no Leases."""
    authority = Authority(tmp_path / "certificates")
    authority.create()
    authority.sign(Certificate("tls", "webhook", hosts=(HOST,)))
    health, webhook = free_port(), free_port()
    options = [
        "--leader-elect",
        "--watch-namespaces=research",
        f"--liveness-port={health}",
        f"--webhook-port={webhook}",
        f"--webhook-certificates={authority.directory}",
    ]
    process = OperatorProcess(kubeconfig, tmp_path / "operator.log", "http://127.0.0.1:1", options)
    process.start()
    trusting = ssl.create_default_context(cafile=str(authority.certificate))
    yield Standby(process, health, webhook, trusting)
    process.kill()


def test_a_replica_is_ready_only_once_its_webhook_listens(standby: Standby) -> None:
    wait_until(lambda: f"the replica to be ready; log: {standby.process.log()}", standby.ready, interval=0.01)
    assert standby.answers()


def test_reviews_are_answered_for_a_while_after_the_signal(standby: Standby) -> None:
    wait_until(lambda: f"the replica to be ready; log: {standby.process.log()}", standby.ready)
    os.kill(standby.process.pid, signal.SIGTERM)
    wait_until(lambda: "the signal to be taken", lambda: "is to end" in standby.process.log(), interval=0.01)
    assert standby.answers()
    wait_until(lambda: "the process to end", lambda: not standby.process.running())
    assert standby.process.exit_code == 0
