"""What `/metrics` says of clients: what the endpoints have seen of them, and their requests.

Requests are counted by kind and status, by principal, and by how long answers took to begin. Only the busiest
principals have a label of their own, so that many names cannot fill the memory of this broker, or of the monitoring.
Only the endpoints' loop counts. Names and meanings are in docs/metrics.md.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from prometheus_client.metrics_core import Metric

from loadmanager.embedding.handover import Handover
from loadmanager.model.families import counter, counters, gauge, histograms
from loadmanager_api.access.rates import LOOKUPS
from loadmanager_api.access.sender import PRINCIPAL, Principal
from statechannel.runtime.durations import Durations


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


NAMED = 20
"""Principals with a label of their own."""

KNOWN = 10_000
"""Maximum number of principals whose requests are counted to find the busiest; beyond it the others restart at 0."""

NAME_CHARACTERS = 100
ANYBODY = "anonymous"
"""The label of requests whose sender did not prove a name."""

OTHER = "other"
KINDS = ("lookup", "heartbeat", "other")


class Busiest:
    """Counts by name. At most NAMED names, of those with the most requests, have counts of their own.

    A name that loses its place has its counts added to `other`, and one that gets a place begins at 0: no series ever
    falls.
    """

    def __init__(self) -> None:
        self.named: dict[str, Counter[str]] = {}
        self.other: Counter[str] = Counter()
        self._totals: Counter[str] = Counter()

    def add(self, name: str, kind: str) -> None:
        """Count one."""
        self._totals[name] += 1
        if name not in self.named and self._has_place(name):
            self.named[name] = Counter()
        self.named.get(name, self.other)[kind] += 1

    def _has_place(self, name: str) -> bool:
        """Whether the name gets a place now, for which another one may lose its."""
        if len(self.named) < NAMED:
            return True
        if len(self._totals) > KNOWN:
            self._totals = Counter({each: self._totals[each] for each in (*self.named, name)})
        least = min(self.named, key=self._totals.__getitem__)
        if self._totals[name] <= self._totals[least]:
            return False
        self.other.update(self.named.pop(least))
        return True


class Requests:
    """The counts of one broker's endpoints."""

    def __init__(self) -> None:
        self.principals = Busiest()
        self.statuses: Counter[tuple[str, str]] = Counter()
        self.durations = {kind: Durations() for kind in KINDS}

    def add(self, principal: Principal | None, kind: str, status: int | None) -> None:
        """Count a request that was answered with this status; None: the client had left."""
        self.principals.add(ANYBODY if principal is None else principal.name[:NAME_CHARACTERS], kind)
        self.statuses[kind, "none" if status is None else f"{status // 100}xx"] += 1

    def metrics(self) -> Iterator[Metric]:
        """All of them."""
        yield counters("http_requests", "Answered requests", ("kind", "code"), dict(self.statuses))
        by_name = {(name, kind): n for name, counts in self.principals.named.items() for kind, n in counts.items()}
        by_name |= {(OTHER, kind): n for kind, n in self.principals.other.items()}
        yield counters("http_principal_requests", "Of the busiest, and all others", ("principal", "kind"), by_name)
        durations = self.durations.items()
        yield histograms("http_request_duration_seconds", "Until an answer began", "kind", durations)


class Counted:
    """An ASGI application that counts the requests of another one. It is outermost: refused ones count, too."""

    def __init__(self, app: Any, requests: Requests) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        kind, began_s = kind_of(scope["path"]), time.perf_counter()
        status: int | None = 200 if kind == "lookup" else None  # some lookups are written in one piece, past `send`

        async def sent(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._requests.durations[kind].add(time.perf_counter() - began_s)
            await send(message)

        try:
            await self._app(scope, receive, sent)
        finally:
            self._requests.add(scope.get(PRINCIPAL), kind, status)


def kind_of(path: str) -> str:
    """The kind of a request: metrics tell lookups from all others, and heartbeats of consumers, most of which wait."""
    if path.startswith(LOOKUPS):
        return "lookup"
    return "heartbeat" if path.endswith("/heartbeat") and path.startswith("/v1/groups/") else "other"
