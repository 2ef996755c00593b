"""Sends the spans of a process to a collector by OTLP over HTTP, if its settings name one.

A thread of its own sends them: the control loop only puts them in a queue. Spans that find no room in the queue, or
that the collector does not take, are lost and counted.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from loadmanager.broker.node import Node
from loadmanager.broker.observations import Span
from loadmanager.errors import needs_extra
from loadmanager.model.registration import VERSION

QUEUED_AT_MOST = 4_096
BATCH = 512
LINGER_S = 0.5
SEND_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 2.0
TRACES_PATH = "/v1/traces"

Sender = Callable[[Sequence[Span]], bool]


class Export:
    """Takes spans on any thread; `send` is called on the export's own thread and says whether they were taken."""

    def __init__(self, send: Sender) -> None:
        self.exported = self.dropped = self.failed = 0
        """Spans that were sent, that found no room, and that the collector did not take."""
        self._send = send
        self._queue: queue.Queue[Span | None] = queue.Queue(QUEUED_AT_MOST)
        self._thread = threading.Thread(target=self._work, name="loadmanager-traces", daemon=True)
        self._thread.start()

    def offer(self, span: Span) -> None:
        """Queue a span; never waits."""
        try:
            self._queue.put_nowait(span)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Send what is queued, within a short time."""
        try:
            self._queue.put(None, timeout=CLOSE_TIMEOUT_S)
        except queue.Full:
            return
        self._thread.join(CLOSE_TIMEOUT_S)

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            batch, over = [first], False
            until_s = time.monotonic() + LINGER_S
            while len(batch) < BATCH and not over:
                try:
                    more = self._queue.get(timeout=max(0.0, until_s - time.monotonic()))
                except queue.Empty:
                    break
                over = more is None
                batch += [] if more is None else [more]
            if self._send(batch):
                self.exported += len(batch)
            else:
                self.failed += len(batch)
            if over:
                return


def otlp(endpoint: str, service: dict[str, str], clock_s: Callable[[], float]) -> Sender:
    """A sender to this URL, which lacks its path or has it; `clock_s` is the clock of the spans.

    Further options come from the environment, as OpenTelemetry names them: OTEL_EXPORTER_OTLP_HEADERS has credentials.
    Raises Unavailable without the extra `otel`.
    """
    with needs_extra("otel", "otlp_endpoint"):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import SpanExportResult
    parts = urlsplit(endpoint)
    url = endpoint if parts.path.strip("/") else endpoint.rstrip("/") + TRACES_PATH
    exporter, resource = OTLPSpanExporter(url, timeout=SEND_TIMEOUT_S), Resource(service)

    def send(spans: Sequence[Span]) -> bool:
        epoch_ns = time.time_ns() - round(clock_s() * 1e9)
        return exporter.export([_readable(span, resource, epoch_ns) for span in spans]) is SpanExportResult.SUCCESS

    return send


def _readable(span: Span, resource: Any, epoch_ns: int) -> Any:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, TraceFlags
    from opentelemetry.trace.status import Status, StatusCode

    def context(span_id: int, *, remote: bool) -> SpanContext:
        return SpanContext(span.trace_id, span_id, remote, TraceFlags(TraceFlags.SAMPLED))

    return ReadableSpan(
        span.name,
        context(span.span_id, remote=False),
        None if span.parent_id is None else context(span.parent_id, remote=True),
        resource,
        dict(span.attributes),
        status=Status(StatusCode.ERROR if span.failed else StatusCode.UNSET),
        start_time=epoch_ns + round(span.began_s * 1e9),
        end_time=epoch_ns + round(span.ended_s * 1e9),
        instrumentation_scope=InstrumentationScope("loadmanager"),
    )


@asynccontextmanager
async def traced(node: Node) -> AsyncGenerator[None]:
    """Export the spans of this node while the context is open, if its settings name a collector."""
    settings = node.settings
    if not settings.otlp_endpoint:
        yield
        return
    service = {"service.name": "loadmanager", "service.namespace": settings.cluster}
    service |= {"service.instance.id": settings.advertised, "service.version": VERSION}
    export = node.seen.tracing = Export(otlp(settings.otlp_endpoint, service, node.world.clock_s))
    try:
        yield
    finally:
        await asyncio.to_thread(export.close)
