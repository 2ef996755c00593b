"""Heartbeats of consumer groups at one broker's admin endpoint, and what they cost the loop that renews proofs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from bench.backends import carrier
from bench.cluster import (
    BrokerProcess,
    cluster,
    create_namespace,
    requests_on_connections,
    requests_on_one_connection,
)
from bench.figures import emit, percentile

GROUPS, MEMBERS = 20, 10
REQUESTS = 20_000
LATE = "loadmanager_loop_late_seconds"


def run(kind: str) -> None:
    """All figures of this bench; it needs Kafka, whatever `kind` is."""
    del kind
    with carrier("kafka") as where, cluster(where, 1, host="loadmanager.consumer.hosting:make_host") as (broker,):
        create_namespace(broker, "bench/groups", 8)
        beats = _steady(broker, [_join(broker, group, member) for group in range(GROUPS) for member in range(MEMBERS)])
        requests_on_one_connection(broker.name, [next(beats) for _ in range(REQUESTS // 10)])
        at_first = _late(broker)
        begin = time.perf_counter()
        took = requests_on_one_connection(broker.name, [next(beats) for _ in range(REQUESTS)])
        _emit("1 connection", REQUESTS / (time.perf_counter() - begin), took)
        rate, took = requests_on_connections(broker.name, [next(beats) for _ in range(REQUESTS)], 16)
        _emit("16 connections", rate, took)
        late = [after - before for before, after in zip(at_first, _late(broker), strict=True)]
        emit("heartbeats", "timers of the loop that renews proofs", late[0], "", later_than_20_ms=late[0] - late[1])


def _emit(name: str, rate: float, took: list[float]) -> None:
    p50, p99 = (round(percentile(took, share) * 1e3, 3) for share in (50, 99))
    emit("heartbeats", f"{GROUPS * MEMBERS} members, {name}", rate, "1/s", p50_ms=p50, p99_ms=p99)


def _path(group: int, member: int) -> str:
    return f"/v1/groups/bench/groups/g-{group}/members/m-{member}/heartbeat"


def _join(broker: BrokerProcess, group: int, member: int) -> tuple[str, int, int]:
    """Path, epoch and revision of a new member."""
    path, body = _path(group, member), {"subscription": {"topics": ["none"]}}
    while True:
        status, answer = broker.ask("POST", path, body)
        if status == 200:
            return path, answer["epoch"], answer["revision"]
        assert status == 503, (status, answer)  # its bundle is being assigned
        broker.ask("GET", f"/lookup/v2/topic/persistent/bench/groups/g-{group}")


def _steady(broker: BrokerProcess, members: list[tuple[str, int, int]]) -> Iterator[bytes]:
    """Heartbeats that bring no news, of one member after another."""
    sequence = 1
    while True:
        sequence += 1
        for path, epoch, revision in members:
            beat = {"subscription": {"topics": ["none"]}, "epoch": epoch, "acked": revision, "sequence": sequence}
            body = json.dumps(beat).encode()
            head = f"POST {path} HTTP/1.1\r\nHost: {broker.name}\r\nContent-Type: application/json\r\n"
            yield f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _late(broker: BrokerProcess) -> tuple[int, int]:
    """How many timers of the control loop were due, and how many of them ran within 20 ms."""
    samples = dict(line.rsplit(" ", 1) for line in broker.ask("GET", "/metrics")[1].splitlines() if line[0] != "#")
    return round(float(samples[f"{LATE}_count"])), round(float(samples[f'{LATE}_bucket{{le="0.02"}}']))
