"""Incidents reach a collector that speaks OTLP over HTTP, once each, and nothing waits for it."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from megatron_operator.controller.traces import TraceSender, spans_of
from megatron_operator.lifecycle.incident_traces import IncidentTrace, PhaseSpan
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.unit.controller.simulated_run import Run

TRACE = IncidentTrace(
    uid="uid-1",
    number=3,
    begin=1_800_000_000.0,
    end=1_800_000_010.5,
    phases=(
        PhaseSpan("detect", 1_800_000_000.0, 1_800_000_002.0),
        PhaseSpan("redo", 1_800_000_002.0, 1_800_000_010.5),
    ),
    attributes={"megatron.incident.kind": "rank", "k8s.namespace.name": "research"},
    recovered=True,
)


class Collector:
    """An OTLP receiver on loopback."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.receive(self.path, ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_arguments: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def receive(self, path: str, request: ExportTraceServiceRequest) -> None:
        assert path == "/v1/traces"
        for resource in request.resource_spans:
            names = [
                each.value.string_value for each in resource.resource.attributes if each.key == "service.name"
            ]
            self.services.update(names)
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.close()


def sender_to(url: str, monkeypatch: pytest.MonkeyPatch) -> TraceSender:
    # The library reads the process's environment itself.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    found = TraceSender.from_environment()
    assert found is not None
    return found


def test_a_collector_receives_the_incident_with_its_phases(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = sender_to(collector.url, monkeypatch)
    sender.send(TRACE)
    asyncio.run(sender.stop())
    whole, *phases = sorted(collector.spans, key=lambda span: (bool(span.parent_span_id), span.name))
    assert (whole.name, [each.name for each in phases]) == ("incident rank", ["detect", "redo"])
    assert whole.end_time_unix_nano - whole.start_time_unix_nano == 10_500_000_000
    assert {each.parent_span_id for each in phases} == {whole.span_id}
    assert {each.trace_id for each in phases} == {whole.trace_id}
    attributes = {each.key: each.value.string_value for each in whole.attributes}
    assert attributes == {"megatron.incident.kind": "rank", "k8s.namespace.name": "research"}
    assert collector.services == {"megatron-operator"}


def test_without_a_collector_in_the_environment_nothing_is_sent() -> None:
    assert TraceSender.from_environment({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}) is None


def test_variables_that_the_library_refuses_do_not_stop_the_operator(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "100")
    assert TraceSender.from_environment() is None
    assert "not sent as traces; correct the variables OTEL_*" in caplog.text


def test_a_collector_that_never_answers_does_not_keep_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        sender = sender_to(f"http://127.0.0.1:{silent.getsockname()[1]}", monkeypatch)
        monkeypatch.setattr("megatron_operator.controller.traces.LAST_EXPORT", 0.1)
        sender.send(TRACE)
        asyncio.run(sender.stop())


def test_one_incident_has_one_trace_whoever_sends_it() -> None:
    contexts = [[span.context for span in spans_of(each)] for each in (TRACE, replace(TRACE))]
    assert contexts[0] == contexts[1]
    other = spans_of(replace(TRACE, number=4))[0].context
    assert other is not None
    assert contexts[0][0] is not None
    assert other.trace_id != contexts[0][0].trace_id


def test_times_that_the_protocol_cannot_hold_are_cut() -> None:
    whole = spans_of(replace(TRACE, begin=-1.0, end=1e300))[0]
    assert (whole.start_time, whole.end_time) == (0, 9_000_000_000_000_000_000)


@pytest.mark.parametrize("writes", [None, *range(5)])
def test_a_lost_pod_is_one_trace_wherever_the_operator_dies(training_run: Run, writes: int | None) -> None:
    run = training_run
    run.until(lambda: run.cluster.iteration > 60)
    sent = len(run.operator.traces)
    run.cluster.delete_now(run.cluster.pods[1])
    run.operator.die_after(writes)
    run.until(lambda: bool(run.incidents) and "redo" in run.incidents[-1].get("seconds", {}))
    [trace] = run.operator.traces[sent:]
    assert {phase.name: phase.end - phase.begin for phase in trace.phases} == pytest.approx(
        {name: value for name, value in run.incidents[-1]["seconds"].items() if value}
    )
