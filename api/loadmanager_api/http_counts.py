"""What one broker's endpoints have seen of their clients, for `/metrics`; only the endpoints' loop counts.

Names and meanings are in docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from loadmanager.broker.metrics import PREFIX
from loadmanager.embedding.handover import Handover


class HttpCounts(msgspec.Struct):
    """Since the endpoints opened; `connections` are those of this moment. `late_…` missed their deadline."""

    connections: int = 0
    beyond: int = 0
    not_let_in: int = 0
    heads_refused: int = 0
    late_heads: int = 0
    late_bodies: int = 0
    late_answers: int = 0


def http_metrics(counts: HttpCounts, handover: Handover) -> Iterator[Metric]:
    """The metrics. Call it on the endpoints' loop."""
    yield GaugeMetricFamily(PREFIX + "http_connections", "Open at this moment", value=counts.connections)
    refused = CounterMetricFamily(PREFIX + "http_connections_refused", "Beyond the limit", labels=("how",))
    refused.add_metric(("vital_only",), counts.beyond)
    refused.add_metric(("closed",), counts.not_let_in)
    yield refused
    yield CounterMetricFamily(PREFIX + "http_heads_refused", "Too large: 431", value=counts.heads_refused)
    late = CounterMetricFamily(PREFIX + "http_deadlines_missed", "By clients that are too slow", labels=("part",))
    late.add_metric(("head",), counts.late_heads)
    late.add_metric(("body",), counts.late_bodies)
    late.add_metric(("answer",), counts.late_answers)
    yield late
    yield GaugeMetricFamily(PREFIX + "http_requests_waiting", "For the control loop", value=handover.waiting)
    yield CounterMetricFamily(
        PREFIX + "http_requests_refused", "That the control loop could not take", value=handover.refused
    )
