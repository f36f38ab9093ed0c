"""The launcher's HTTP server: /progress as JSON, /metrics for Prometheus, /healthz."""

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from megatron_contract.progress import ProgressReport
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import GaugeMetricFamily, InfoMetricFamily, Metric

from megatron_trainer.listening import listen

MAX_CONNECTIONS = 16
"""Connections that are served at once, each by a thread."""
CONNECTION_SECONDS = 5.0
"""Longest time from the connection to the last byte of its answer."""

# Field of ProgressReport -> metric (prefix megatron_) and its help text.
GAUGES: dict[str, tuple[str, str]] = {
    "generation": ("generation", "Generation of the gang: the number of times that all ranks were started"),
    "rank_restarts": ("rank_restarts", "Restarts of this pod's ranks since the last new checkpoint"),
    "iteration": ("iteration", "Last iteration done"),
    "train_iters": ("train_iterations", "Iterations to do"),
    "lm_loss": ("lm_loss", "Loss of the last iteration, over all data-parallel ranks"),
    "validation_loss": ("validation_loss", "Loss of the last evaluation of the validation data"),
    "best_validation_loss": ("best_validation_loss", "Lowest loss of an evaluation of the validation data"),
    "learning_rate": ("learning_rate", "Learning rate"),
    "step_seconds": ("step_seconds", "Duration of the last iteration in seconds"),
    "tokens_per_second": ("tokens_per_second", "Tokens trained per second, whole job"),
    "tflops_per_gpu": ("tflops_per_gpu", "Model TFLOP/s per GPU, by Megatron's formula"),
    "consumed_samples": ("consumed_samples", "Samples trained on"),
    "checkpoint_iteration": ("checkpoint_iteration", "Iteration of the newest complete checkpoint"),
    "resumed_from": ("resumed_from_iteration", "Iteration that this generation started from"),
    "useful_seconds": (
        "useful_seconds",
        "Seconds of step time since the first start, without lost iterations",
    ),
}


def collect_metrics(report: ProgressReport) -> Iterable[Metric]:
    """The Prometheus metrics of a progress report; a value that is not known has none."""
    labels = {"node_rank": str(report.node_rank)}
    for field, (name, text) in GAUGES.items():
        value = getattr(report, field)
        if value is None:
            continue
        gauge = GaugeMetricFamily(f"megatron_{name}", text, labels=list(labels))
        gauge.add_metric(list(labels.values()), float(value))
        yield gauge
    slow = [each for each in report.stragglers if each.node_rank == report.node_rank]
    if slow:
        gauge = GaugeMetricFamily(
            "megatron_rank_slowdown",
            "Own time of a rank that is slow over that of its peers",
            labels=[*labels, "rank"],
        )
        for each in slow:
            gauge.add_metric([*labels.values(), str(each.rank)], each.slowdown)
        yield gauge
    if report.checkpoint_time:
        gauge = GaugeMetricFamily(
            "megatron_checkpoint_timestamp_seconds",
            "When the newest complete checkpoint was written",
            labels=list(labels),
        )
        written = datetime.fromisoformat(report.checkpoint_time.replace("Z", "+00:00")).timestamp()
        gauge.add_metric(list(labels.values()), written)
        yield gauge
    info = InfoMetricFamily("megatron_phase", "Phase of the run", labels=list(labels))
    info.add_metric(list(labels.values()), {"phase": report.phase})
    yield info


class _Collector:
    """Converts the progress report to Prometheus metrics at every scrape."""

    def __init__(self, report: Callable[[], ProgressReport]) -> None:
        self._report = report

    def collect(self) -> Iterable[Metric]:
        return collect_metrics(self._report())


class _Handler(BaseHTTPRequestHandler):
    report: Callable[[], ProgressReport]
    registry: CollectorRegistry

    def do_GET(self) -> None:
        path = self.path.split("?", 1)[0]
        if path == "/progress":
            self._respond(200, "application/json", json.dumps(self.report().to_json()).encode())
        elif path == "/metrics":
            self._respond(200, CONTENT_TYPE_LATEST, generate_latest(self.registry))
        elif path == "/healthz":
            self._respond(200, "text/plain", b"ok\n")
        else:
            self._respond(404, "text/plain", b"try /progress, /metrics or /healthz\n")

    def _respond(self, code: int, content_type: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None: ...


class ProgressServer(ThreadingHTTPServer):
    """Serves the progress report on all addresses of the pod. Port 0 takes a free one (`server_port`).

    Anyone in the cluster may connect. Of more than MAX_CONNECTIONS the oldest is ended, because a client that
    wants an answer has it within milliseconds; so clients that never finish keep no other from its answer.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, report: Callable[[], ProgressReport]) -> None:
        """Bind the port. Raises OSError if it is taken."""
        registry = CollectorRegistry()
        registry.register(_Collector(report))
        fields = {"report": staticmethod(report), "registry": registry}
        self._open: dict[socket.socket, float] = {}
        self._changed = threading.Condition()
        super().__init__(("", port), type("Handler", (_Handler,), fields))

    def server_bind(self) -> None:
        """Listen on addresses of IPv6 too, which pods of some clusters have alone."""
        self.socket.close()
        self.socket = listen(self.server_address[1], self.request_queue_size)
        self.server_address = self.socket.getsockname()
        self.server_port = self.server_address[1]

    def start(self) -> None:
        """Serve on a daemon thread."""
        threading.Thread(target=self.serve_forever, daemon=True, name="progress-server").start()

    @property
    def connections(self) -> int:
        """Number of open connections, each with a thread."""
        with self._changed:
            return len(self._open)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection on a thread of its own, once there is one to spare."""
        with self._changed:
            if len(self._open) >= MAX_CONNECTIONS:
                _end(next(iter(self._open)))
            spare = self._changed.wait_for(lambda: len(self._open) < MAX_CONNECTIONS, CONNECTION_SECONDS)
            if spare:
                self._open[request] = time.monotonic()
        if spare:
            super().process_request(request, client_address)
        else:
            super().shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that was served."""
        super().shutdown_request(request)
        with self._changed:
            self._open.pop(request, None)
            self._changed.notify_all()

    def service_actions(self) -> None:
        """End the connections that take too long; called by serve_forever, twice a second or more often."""
        super().service_actions()
        with self._changed:
            for request, opened in self._open.items():
                if time.monotonic() - opened > CONNECTION_SECONDS:
                    _end(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks is no news: anyone may break one."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _end(connection: socket.socket) -> None:
    """Make all that a thread waits for on a connection fail at once."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
