"""Prometheus metrics of a running ingest, from Spark's report of the query and from the lake's progress.

The loop reads them, not a scrape: a scrape costs nothing, and its figures are at most `EVERY_S` old.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from pyspark.sql.streaming.query import StreamingQuery

from loadmanager.errors import Invalid
from loadmanager.history.ingest.positions import totals
from loadmanager.history.lake import Lake
from loadmanager.history.sources import TOPICS

EVERY_S = 10.0
Offsets = Mapping[str, Mapping[str, int]]


class Topic(msgspec.Struct, frozen=True):
    """How far the lake is with a topic: records in all, offsets behind the log, time of its last record."""

    records: int
    until_s: float
    behind: int | None = None


class Gauges(Collector):
    """The last look at a query and its lake."""

    def __init__(self) -> None:
        self._looked_s = 0.0
        self._batch = -1
        self._batch_s = self._rows_s = 0.0
        self._topics: dict[str, Topic] = {}
        self._quarantined: dict[tuple[str, str], int] = {}

    def look(self, lake: Lake, query: StreamingQuery) -> None:
        """Read the figures again, if the last time is long enough ago."""
        now_s = time.monotonic()
        report: dict[str, Any] = msgspec.json.decode(query.lastProgress.json) if query.lastProgress else {}
        if now_s - self._looked_s < EVERY_S or not report:
            return
        self._looked_s = now_s
        self._batch = int(report["batchId"])
        self._batch_s = report.get("batchDuration", 0) / 1000
        self._rows_s = float(report.get("processedRowsPerSecond") or 0.0)
        behind = lag(report["sources"][0]) if report.get("sources") else {}
        self._topics = _topics(lake, behind)
        kinds = lake.table("quarantine").groupBy("topic", "kind").count().collect()
        self._quarantined = {(row["topic"], row["kind"]): row["count"] for row in kinds}

    def collect(self) -> Iterable[Metric]:
        """For prometheus_client."""
        prefix = "loadmanager_history"
        yield GaugeMetricFamily(f"{prefix}_batch", "Number of the last batch of the query", self._batch)
        yield GaugeMetricFamily(f"{prefix}_batch_seconds", "What the last batch took", self._batch_s)
        yield GaugeMetricFamily(f"{prefix}_rows_per_second", "Records a second in the last batch", self._rows_s)
        records = CounterMetricFamily(f"{prefix}_records", "Records ingested, by the lake", labels=["topic"])
        behind = GaugeMetricFamily(f"{prefix}_lag_records", "Offsets not ingested yet", labels=["topic"])
        late = GaugeMetricFamily(
            f"{prefix}_lag_seconds", "Age of what was ingested last, 0 at the end", labels=["topic"]
        )
        for name, topic in self._topics.items():
            records.add_metric([name], topic.records)
            if topic.behind is not None:
                behind.add_metric([name], topic.behind)
            late.add_metric([name], max(0.0, time.time() - topic.until_s) if topic.behind else 0.0)
        bad = GaugeMetricFamily(f"{prefix}_quarantined_records", "Records in quarantine", labels=["topic", "kind"])
        for labels, count in self._quarantined.items():
            bad.add_metric(list(labels), count)
        yield from (records, behind, late, bad)


def lag(source: Mapping[str, Any]) -> dict[str, int]:
    """Offsets that the query is behind, by topic, from Spark's report of a source; empty if the report has none."""
    done, there = (_offsets(source.get(name)) for name in ("endOffset", "latestOffset"))
    behind: dict[str, int] = {}
    for full_name, partitions in there.items():
        name = next((topic for topic in TOPICS if full_name.endswith(topic)), full_name)
        ends = done.get(full_name, {})
        behind[name] = sum(max(0, end - ends.get(number, 0)) for number, end in partitions.items())
    return behind


def _offsets(value: Any) -> Offsets:
    found = msgspec.json.decode(value) if isinstance(value, str) else value
    return found if isinstance(found, dict) else {}


def _topics(lake: Lake, behind: Mapping[str, int]) -> dict[str, Topic]:
    return {topic: Topic(records, us / 1e6, behind.get(topic)) for topic, (records, us) in totals(lake).items()}


@contextmanager
def exporter(address: str, gauges: Gauges) -> Generator[None]:
    """Answer on `host:port` while the context is open; does nothing for an empty address. Raises Invalid."""
    if not address:
        yield
        return
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        raise Invalid(f"{address!r} is not an address for metrics; write host:port")
    registry = CollectorRegistry()
    registry.register(gauges)
    server, thread = start_http_server(int(port), host or "127.0.0.1", registry)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
