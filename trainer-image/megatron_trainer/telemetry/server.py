"""The launcher's HTTP side: /progress as JSON, /metrics for Prometheus, /healthz."""

import json
import math
import threading
from collections.abc import Callable, Iterable
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import GaugeMetricFamily, InfoMetricFamily, Metric

# Field of /progress -> metric (prefix megatron_) and what it says.
GAUGES: dict[str, tuple[str, str]] = {
    "generation": ("generation", "Generation of the gang: how often its ranks met"),
    "rankRestarts": ("rank_restarts", "Restarts of this pod's ranks since the last new checkpoint"),
    "iteration": ("iteration", "Last iteration done"),
    "trainIters": ("train_iterations", "Iterations to do"),
    "lmLoss": ("lm_loss", "Loss of the last iteration, over all data-parallel ranks"),
    "learningRate": ("learning_rate", "Learning rate"),
    "stepSeconds": ("step_seconds", "Duration of the last iteration in seconds"),
    "tokensPerSecond": ("tokens_per_second", "Tokens trained per second, whole job"),
    "tflopsPerGpu": ("tflops_per_gpu", "Model TFLOP/s per GPU, by Megatron's formula"),
    "consumedSamples": ("consumed_samples", "Samples trained on"),
    "checkpointIteration": ("checkpoint_iteration", "Iteration of the newest whole checkpoint"),
    "resumedFrom": ("resumed_from_iteration", "Iteration that this generation started from"),
    "usefulSeconds": ("useful_seconds", "Seconds of step time since the first start that were not in vain"),
}


class _Collector:
    def __init__(self, snapshot: Callable[[], dict[str, Any]]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        fields = self._snapshot()
        labels = {"node_rank": str(fields["nodeRank"])}
        for field, (name, text) in GAUGES.items():
            if fields[field] is None:
                continue
            gauge = GaugeMetricFamily(f"megatron_{name}", text, labels=list(labels))
            gauge.add_metric(list(labels.values()), float(fields[field]))
            yield gauge
        if fields["checkpointTime"]:
            gauge = GaugeMetricFamily(
                "megatron_checkpoint_timestamp_seconds",
                "When the newest whole checkpoint was written",
                labels=list(labels),
            )
            written = datetime.fromisoformat(fields["checkpointTime"].replace("Z", "+00:00")).timestamp()
            gauge.add_metric(list(labels.values()), written)
            yield gauge
        info = InfoMetricFamily("megatron_phase", "What the run is doing", labels=list(labels))
        info.add_metric(list(labels.values()), {"phase": fields["phase"]})
        yield info


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


class _Handler(BaseHTTPRequestHandler):
    snapshot: Callable[[], dict[str, Any]]
    registry: CollectorRegistry

    def do_GET(self) -> None:
        path = self.path.split("?", 1)[0]
        if path == "/progress":
            # JSON has no NaN and no infinity: a loss that is not finite is told as null.
            fields = {key: _finite(value) for key, value in self.snapshot().items()}
            self._answer(200, "application/json", json.dumps(fields).encode())
        elif path == "/metrics":
            self._answer(200, CONTENT_TYPE_LATEST, generate_latest(self.registry))
        elif path == "/healthz":
            self._answer(200, "text/plain", b"ok\n")
        else:
            self._answer(404, "text/plain", b"try /progress, /metrics or /healthz\n")

    def _answer(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None: ...


class ProgressServer(ThreadingHTTPServer):
    """Serves `snapshot` on all addresses of the pod. Port 0 takes a free one; `server_port` says which."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, port: int, snapshot: Callable[[], dict[str, Any]]) -> None:
        registry = CollectorRegistry()
        registry.register(_Collector(snapshot))
        fields = {"snapshot": staticmethod(snapshot), "registry": registry}
        super().__init__(("", port), type("Handler", (_Handler,), fields))

    def start(self) -> None:
        threading.Thread(target=self.serve_forever, daemon=True, name="progress-server").start()
