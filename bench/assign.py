"""First lookups of unowned bundles over REST, and how evenly idle bundles spread. Pulsar 4.0.7: 40/s and 300/s."""

from __future__ import annotations

from bench.backends import carrier
from bench.cluster import (
    BrokerProcess,
    cluster,
    create_namespace,
    lookup_path,
    request_bytes,
    requests_on_connections,
    requests_on_one_connection,
    topics_of_bundles,
)
from bench.figures import emit, percentile

BUNDLES = 1_024
BROKERS = 3


def run(kind: str) -> None:
    """All figures of this bench."""
    with carrier(kind) as where, cluster(where, BROKERS) as brokers:
        asked = brokers[0]
        took = requests_on_one_connection(asked.name, _first_lookups(asked, "bench/one"))
        rate = len(took) / sum(took)
        emit(
            "assign", f"first lookups, 1 connection, {kind}", rate, "1/s", target="≥ 400", met=rate >= 400,
            p50_ms=round(percentile(took, 50) * 1e3, 2), p99_ms=round(percentile(took, 99) * 1e3, 2),
        )  # fmt: skip
        rate, took = requests_on_connections(asked.name, _first_lookups(asked, "bench/sixteen"), 16)
        emit(
            "assign", f"first lookups, 16 connections, {kind}", rate, "1/s", target="≥ 3,000", met=rate >= 3_000,
            p50_ms=round(percentile(took, 50) * 1e3, 2), p99_ms=round(percentile(took, 99) * 1e3, 2),
        )  # fmt: skip
        counts = _owned(asked)
        even = 2 * BUNDLES / BROKERS
        worst = max(abs(count - even) / even for count in counts) * 100
        emit(
            "assign",
            f"owners of idle bundles, off even, {kind}",
            worst,
            "%",
            target="≤ 2",
            met=worst <= 2,
            owned=counts,
        )


def _first_lookups(broker: BrokerProcess, namespace: str) -> list[bytes]:
    create_namespace(broker, namespace, BUNDLES)
    boundaries = broker.ask("GET", f"/admin/v2/namespaces/{namespace}/bundles")[1]["boundaries"]
    return [request_bytes(lookup_path(topic)) for topic in topics_of_bundles(namespace, boundaries)]


def _owned(broker: BrokerProcess) -> list[int]:
    brokers = broker.ask("GET", "/v1/brokers")[1]
    rows = brokers["brokers"] if isinstance(brokers, dict) else brokers
    return sorted(row["bundles"] for row in rows)
