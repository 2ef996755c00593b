"""What Prometheus finds of an ingest."""

from __future__ import annotations

import urllib.request
from types import SimpleNamespace

import msgspec
import pytest

from loadmanager.errors import Invalid
from loadmanager.history.ingest.metrics import Gauges, exporter, lag
from loadmanager.history.ingest.positions import SILVER, Mark, advance
from stack.servers import free_port


def report(**source: object) -> bytes:
    """A query's progress as Spark tells it."""
    told = {"batchId": 7, "batchDuration": 1_500, "processedRowsPerSecond": 12.5, "sources": [source]}
    return msgspec.json.encode(told)


def test_the_lag_of_a_topic_is_the_sum_over_its_partitions():
    there = {"lm.load-brokers": {"0": 10}, "lm.bundle-state": {"0": 5, "1": 7}}
    done = {"lm.load-brokers": {"0": 10}, "lm.bundle-state": {"0": 3}}
    as_kafka = {"endOffset": done, "latestOffset": there}
    as_text = {name: msgspec.json.encode(value).decode() for name, value in as_kafka.items()}
    assert lag(as_kafka) == lag(as_text) == {"load-brokers": 0, "bundle-state": 9}
    assert lag({"endOffset": done, "latestOffset": None}) == {}


def test_a_look_is_what_a_scrape_shows(lake):
    advance(lake, SILVER, 0, [Mark("load-brokers", 0, 10, 10, 1_000_000), Mark("bundle-state", 0, 4, 4, 2_000_000)])
    ends = {"endOffset": {"lm.load-brokers": {"0": 10}}, "latestOffset": {"lm.load-brokers": {"0": 25}}}
    gauges = Gauges()
    gauges.look(lake, SimpleNamespace(lastProgress=SimpleNamespace(json=report(**ends))))  # type: ignore[arg-type]
    port = free_port()
    with exporter(f"127.0.0.1:{port}", gauges), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        told = answer.read().decode()
    assert "loadmanager_history_batch 7.0" in told
    assert "loadmanager_history_batch_seconds 1.5" in told
    assert 'loadmanager_history_records_total{topic="load-brokers"} 10.0' in told
    assert 'loadmanager_history_lag_records{topic="load-brokers"} 15.0' in told
    assert 'loadmanager_history_lag_seconds{topic="bundle-state"} 0.0' in told


def test_without_an_address_nobody_listens_and_a_wrong_one_is_refused():
    with exporter("", Gauges()):
        pass
    with pytest.raises(Invalid, match="write host:port"), exporter("here", Gauges()):
        pass
