"""A real OpenTelemetry Collector takes what brokers send: `make test-collector`, which builds one. Needs Go."""

from __future__ import annotations

from pathlib import Path

from loadmanager.testing.cluster import embedded_cluster
from stack.collector import CollectorServer
from tests.observability.test_traces import Quiet


async def test_a_collector_has_a_transfer_of_two_brokers_as_one_trace(tmp_path: Path) -> None:
    collector = CollectorServer(tmp_path / "collector")
    collector.start()
    try:
        async with embedded_cluster(Quiet, brokers=2, bundles=2, otlp_endpoint=collector.url) as cluster:
            bundle = cluster.bundles()[0]
            old = cluster.owner(bundle)
            (new,) = set(cluster.brokers) - {old}
            assert old is not None
            await cluster.transfer(bundle, new)

            def trace() -> set[tuple[str, str]]:
                spans = collector.spans
                found = {span["traceId"] for _, span in spans if span["name"] == f"transfer {bundle}"}
                return {(by, span["name"]) for by, span in spans if span["traceId"] in found}

            wanted = {(new.name, "prepare"), (old.name, "release"), (new.name, "acquire")}
            await cluster.until(lambda: wanted <= trace())
    finally:
        collector.stop()
