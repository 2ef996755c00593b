"""What one broker's endpoints have seen of their clients, for `/metrics`; only the endpoints' loop counts.

Names and meanings are in docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from prometheus_client.metrics_core import Metric

from loadmanager.embedding.handover import Handover
from loadmanager.model.families import counter, counters, gauge


class HttpCounts(msgspec.Struct):
    """Since the endpoints opened; `connections` are those of this moment. `late_…` missed their deadline.

    `certificate_until_s` is when the server's certificate expires, in seconds since 1970; None without TLS. Requests
    answered 503: `crowded`, because `http_requests` ran already, or batches or bodies took all their room; `untaken`,
    because clients do not take their answers.
    """

    connections: int = 0
    beyond: int = 0
    not_let_in: int = 0
    heads_refused: int = 0
    late_heads: int = 0
    late_bodies: int = 0
    late_answers: int = 0
    crowded: int = 0
    untaken: int = 0
    certificate_until_s: float | None = None


def http_metrics(counts: HttpCounts, handover: Handover, refused: Mapping[str, int]) -> Iterator[Metric]:
    """The metrics. Call it on the endpoints' loop. `refused`: requests that `access/` refused, by reason."""
    yield counters("http_access_refused", "Without credentials or role", "why", refused)
    yield gauge("http_connections", "Open at this moment", counts.connections)
    beyond = {"vital_only": counts.beyond, "closed": counts.not_let_in}
    yield counters("http_connections_refused", "Beyond the limit", "how", beyond)
    yield counter("http_heads_refused", "Too large: 431", counts.heads_refused)
    late = {"head": counts.late_heads, "body": counts.late_bodies, "answer": counts.late_answers}
    yield counters("http_deadlines_missed", "By clients that are too slow", "part", late)
    yield gauge("http_requests_waiting", "For the control loop", handover.waiting)
    turned_away = {"loop": handover.refused, "running": counts.crowded, "untaken": counts.untaken}
    yield counters("http_requests_refused", "That this broker could not take: 503", "why", turned_away)
    until_s = float("nan") if counts.certificate_until_s is None else counts.certificate_until_s
    yield gauge("tls_certificate_expires_seconds", "When, since 1970; NaN without TLS", until_s)
