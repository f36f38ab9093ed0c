"""Sends incidents to an OpenTelemetry collector, by OTLP over HTTP."""

import asyncio
import logging
import os
import threading
from collections.abc import Mapping
from hashlib import sha256
from importlib.metadata import version
from typing import TYPE_CHECKING, Final, Self

from megatron_operator.lifecycle.incident_traces import IncidentTrace

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
    from opentelemetry.trace import SpanContext

log = logging.getLogger(__name__)

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""OpenTelemetry's own variables; its others (`_HEADERS`, `_TIMEOUT`, `_CERTIFICATE`, ...) apply as well."""
LAST_EXPORT: Final = 3.0
"""Seconds for the export of what is queued when the operator stops."""
_LATEST: Final = 9e9
"""Seconds since the epoch whose nanoseconds fit the protocol; pods may report any duration."""


class TraceSender:
    """Queues traces for a thread that sends them. Nothing waits for the collector, and a full queue drops.

    The ids are hashes of the incident, so that a trace that is sent twice is one trace.
    """

    def __init__(self, processor: "SpanProcessor") -> None:
        self._processor = processor

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Self | None:
        """A sender to the collector that the environment names; None where it names none.

        Also None, with an error in the log, where OpenTelemetry refuses its variables: runs matter more.
        """
        if not any(environ.get(name) for name in ENDPOINTS):
            return None
        # Imported here: 15 MiB that an operator without a collector does not need.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        try:
            processor = BatchSpanProcessor(OTLPSpanExporter())
        except Exception as error:
            log.error("incidents are not sent as traces; correct the variables OTEL_*: %s", error)
            return None
        # Without the endpoint: one that a Secret sets may hold a token.
        log.info("incidents are sent as traces")
        return cls(processor)

    def send(self, trace: IncidentTrace) -> None:
        """Queue the spans of an incident: one for the whole, with a child for each phase."""
        for span in spans_of(trace):
            self._processor.on_end(span)

    async def stop(self) -> None:
        """Send what is queued, for at most `LAST_EXPORT` seconds."""
        # A daemon, because the library waits longer for a collector that does not answer.
        stopping = threading.Thread(target=self._processor.shutdown, name="traces-stop", daemon=True)
        stopping.start()
        await asyncio.to_thread(stopping.join, LAST_EXPORT)


def spans_of(trace: IncidentTrace) -> "list[ReadableSpan]":
    """The spans of an incident, that of the whole first."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Status, StatusCode

    resource = Resource.create(
        {"service.name": "megatron-operator", "service.version": version("megatron-operator")}
    )
    whole = _context(trace, "incident")
    status = Status() if trace.recovered else Status(StatusCode.ERROR, "the run ended without recovering")
    found = [
        ReadableSpan(
            f"incident {trace.attributes['megatron.incident.kind']}",
            whole,
            resource=resource,
            attributes=trace.attributes,
            status=status,
            start_time=_nanoseconds(trace.begin),
            end_time=_nanoseconds(trace.end),
        )
    ]
    found += [
        ReadableSpan(
            phase.name,
            _context(trace, phase.name),
            parent=whole,
            resource=resource,
            start_time=_nanoseconds(phase.begin),
            end_time=_nanoseconds(phase.end),
        )
        for phase in trace.phases
    ]
    return found


def _context(trace: IncidentTrace, span: str) -> "SpanContext":
    from opentelemetry.trace import SpanContext, TraceFlags

    incident = f"{trace.uid}/{trace.number}"
    return SpanContext(
        trace_id=_number(incident, 16),
        span_id=_number(f"{incident}/{span}", 8),
        is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )


def _number(text: str, size: int) -> int:
    return int.from_bytes(sha256(text.encode()).digest()[:size])


def _nanoseconds(seconds: float) -> int:
    return int(min(max(seconds, 0.0), _LATEST) * 1_000_000_000)
