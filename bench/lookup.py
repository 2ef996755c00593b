"""Lookups of owned bundles: by the client router's memory, and over HTTP. Pulsar 4.0.7: 9,700/s and 12,800/s."""

from __future__ import annotations

import asyncio
import json
import time

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
from loadmanager.client import Router

BUNDLES = 256
REQUESTS = 60_000
ROUTED = 2_000_000
BATCH = 1_000
BATCHES = 200


def run(kind: str) -> None:
    """All figures of this bench."""
    with carrier(kind) as where, cluster(where, 3) as brokers:
        asked = brokers[0]
        create_namespace(asked, "bench/lookup", BUNDLES)
        boundaries = asked.ask("GET", "/admin/v2/namespaces/bench/lookup/bundles")[1]["boundaries"]
        topics = topics_of_bundles("bench/lookup", boundaries)
        rate = asyncio.run(_routed(asked, [f"persistent://{topic}" for topic in topics]))
        emit("lookup", "in-process router", rate, "1/s", target="≥ 500,000", met=rate >= 500_000)
        rate = _batched(asked, [f"persistent://bench/lookup/topic-{i}" for i in range(BATCH)])
        emit("lookup", f"batches of {BATCH} topics, {kind}", rate, "topics/s", target="≥ 100,000", met=rate >= 100_000)
        requests = [request_bytes(lookup_path(topics[i % BUNDLES])) for i in range(REQUESTS)]
        requests_on_one_connection(asked.name, requests[: REQUESTS // 10])
        begin = time.perf_counter()
        took = requests_on_one_connection(asked.name, requests)
        rate = len(took) / (time.perf_counter() - begin)
        emit(
            "lookup", f"HTTP, 1 connection, {kind}", rate, "1/s", target="≥ 12,000", met=rate >= 12_000,
            p50_ms=round(percentile(took, 50) * 1e3, 3), p99_ms=round(percentile(took, 99) * 1e3, 3),
        )  # fmt: skip
        rate, took = requests_on_connections(asked.name, requests, 16)
        emit(
            "lookup", f"HTTP, 16 connections, {kind}", rate, "1/s", target="≥ 15,000", met=rate >= 15_000,
            p50_ms=round(percentile(took, 50) * 1e3, 3), p99_ms=round(percentile(took, 99) * 1e3, 3),
        )  # fmt: skip


async def _routed(broker: BrokerProcess, topics: list[str]) -> float:
    """Routes per second out of the memory of a router that has looked each bundle up once."""
    async with Router([f"http://{broker.name}"]) as router:
        for topic in topics:
            await router.route(topic)
        asked = [topics[i % len(topics)] for i in range(ROUTED)]
        begin = time.perf_counter()
        for topic in asked:
            router.cached(topic)
        return ROUTED / (time.perf_counter() - begin)


def _batched(broker: BrokerProcess, topics: list[str]) -> float:
    """Topics per second, one request for all of them after another on one connection."""
    body = json.dumps({"topics": topics}).encode()
    head = (
        b"POST /v1/lookup HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    request = head % len(body) + body
    answer = broker.ask("POST", "/v1/lookup", {"topics": topics})[1]["answers"]
    assert all(each["broker"] for each in answer), "not every topic has an owner"
    requests_on_one_connection(broker.name, [request] * 10)
    begin = time.perf_counter()
    requests_on_one_connection(broker.name, [request] * BATCHES)
    return BATCHES * len(topics) / (time.perf_counter() - begin)
