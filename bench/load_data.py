"""Load data on Kafka: the bytes that reports of load cost the brokers that read them, by topic.

Real brokers in this process on a real Kafka, each with 50 bundles whose load changes all the time, so that each broker
reports every five seconds. Counted by Kafka's client: `payload` is what its messages have, `wire` all that came over
the connections of those readers, empty answers too. With the default, only the leader reads the hottest bundles; and
once more with all bundles in the reports, as Pulsar's modular manager has them. Kafka whatever `--log` says.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from bench.backends import Carrier, carrier
from bench.cluster import topics_of_bundles
from bench.figures import emit, median
from bench.turns_world import QuickHost
from loadmanager.broker.hooks import HostRunner
from loadmanager.broker.node import Node
from loadmanager.broker.wiring import dependencies
from loadmanager.model.host import BundleLoad
from loadmanager.model.load import BROKERS_TOPIC, BUNDLES_TOPIC
from loadmanager.settings import Settings
from stack.servers import free_port
from statechannel.adapters.kafka import log as kafka_log
from statechannel.adapters.kafka.reader import Tail
from statechannel.law.bundle import Bundle, Key, even_boundaries

NAMESPACE = "bench/load"
BROKERS = (4, 12)
BUNDLES_EACH = 50
TOPS = (25, 1_000)
"""Bundles in a report: the default, and all of them."""
WINDOW_S = 60.0
REPORT_S = 5.0
STATISTICS_MS = 500
TERMS = 5
MIB_H = 3600 / WINDOW_S / 2**20


class BusyHost(QuickHost):
    """A service that is busy, now more and now less, and so is each of its bundles."""

    async def load(self) -> dict[Bundle, BundleLoad]:
        busy = random.choice((1.0, 2.0, 4.0))
        return {bundle: _load(busy * random.uniform(10, 2_000)) for bundle in await super().load()}


def _load(rate: float) -> BundleLoad:
    return BundleLoad(40, 20, rate, 2 * rate, 1024 * rate, 2048 * rate, rate / 100)


class Meter:
    """What was read since the last `reset`, by topic."""

    def __init__(self) -> None:
        self.payload: Counter[str] = Counter()
        self.wire: Counter[str] = Counter()
        self.readers: defaultdict[str, set[int]] = defaultdict(set)

    def reset(self) -> None:
        """Count from now on."""
        self.__init__()


METER = Meter()


class Metered(Tail):
    """A tail whose bytes are counted."""

    def __init__(
        self, settings: Mapping[str, Any], topic: str, starts: Mapping[int, int], until: int | None = None
    ) -> None:
        name = topic.rpartition(".")[2]
        before: Counter[str] = Counter()

        def count(text: str) -> None:
            told = json.loads(text)
            parts = told["topics"].get(topic, {}).get("partitions", {}).values()
            now = Counter(payload=sum(each["rxbytes"] for each in parts), wire=told["rx_bytes"])
            gained = now - before
            METER.payload[name] += gained["payload"]
            METER.wire[name] += gained["wire"]
            if gained:
                METER.readers[name].add(id(before))
            before.update(gained)

        super().__init__({**settings, "statistics.interval.ms": STATISTICS_MS, "stats_cb": count}, topic, starts, until)


def run(_kind: str) -> None:
    """All figures of this bench."""
    kafka_log.Tail = Metered  # type: ignore[misc]
    for brokers in BROKERS:
        for top in TOPS:
            with carrier("kafka") as where:
                asyncio.run(_measured(where, brokers, top))


async def _measured(where: Carrier, brokers: int, top: int) -> None:
    nodes = [_node(where, top) for _ in range(brokers)]
    running = [asyncio.create_task(node.run()) for node in nodes]
    try:
        for node in nodes:
            await node.ready.wait()
        await _place(nodes, brokers * BUNDLES_EACH)
        await asyncio.sleep(3 * REPORT_S)
        METER.reset()
        log = nodes[0].world.log
        written = sum(await log.ends(BROKERS_TOPIC))
        await asyncio.sleep(WINDOW_S)
        reports = sum(await log.ends(BROKERS_TOPIC)) - written
        for topic in (BROKERS_TOPIC, BUNDLES_TOPIC):
            emit(
                "load-data", f"{topic} read, {brokers} brokers, {top} bundles a report", METER.payload[topic] * MIB_H,
                "MiB/h", wire_mib_h=round(METER.wire[topic] * MIB_H, 2), reports=reports,
                bytes_a_report=round(METER.payload[topic] / max(1, reports)), readers=len(METER.readers[topic]),
            )  # fmt: skip
        took_s = [await _next_leader_reads(nodes) for _ in range(TERMS)]
        emit(
            "load-data", f"a new leader has read {BUNDLES_TOPIC}, {brokers} brokers, {top} bundles a report",
            median(took_s), "s", worst=round(max(took_s), 3),
        )  # fmt: skip
    finally:
        for node in nodes:
            node.stop(0)
        done, hanging = await asyncio.wait(running, timeout=60)
        print(f"{len(done)} of {brokers} brokers stopped", file=sys.stderr)
        for task in hanging:
            task.cancel()
        with suppress(Exception):
            await asyncio.gather(*running)


async def _next_leader_reads(nodes: list[Node]) -> float:
    """The leader is deposed: seconds from the next one's barrier until it may decide on balance."""
    coordination = nodes[0].world.coordination
    before = coordination.leadership
    epoch = -1 if before is None else before.epoch
    if before is not None:
        await coordination.evict(before)
    while True:
        for node in nodes:
            leading = node.current.leader.leading
            if leading is not None and leading.epoch > epoch:
                begin = time.monotonic()
                await node.views.bundles.wait_ready(60.0)
                return time.monotonic() - begin
        await asyncio.sleep(0.001)


def _node(where: Carrier, top: int) -> Node:
    settings = Settings(
        advertised=f"127.0.0.1:{free_port()}",
        log=where.log,
        coordination=where.coordination,
        development=True,
        balancing=False,
        load_top_bundles=top,
        load_window_s=6 * REPORT_S,
        proof_validity_s=10.0,  # a dozen brokers share the loop and two cores
        session_timeout_s=20.0,
    )
    return Node(settings, BusyHost(), HostRunner(), dependencies(settings))


async def _place(nodes: list[Node], bundles: int) -> None:
    boundaries = even_boundaries(bundles)
    await nodes[0].current.operations.create_namespace(NAMESPACE, boundaries)
    await nodes[0].channel.catch_up(30)
    topics = [Key.parse(topic) for topic in topics_of_bundles(NAMESPACE, [f"{each:#x}" for each in boundaries])]
    await asyncio.gather(*(nodes[0].current.lookup.locate(topic, 60.0) for topic in topics))
