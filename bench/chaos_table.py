"""A million records, four queues, four consumers, one and two rebalances: ours, RocketMQ's way, Kafka's two protocols.

A consumer leaves in order when three tenths are read, and in the second play a new one comes at six tenths. Each reads
no more than `PACE_S` records a second, so that rebalances happen while there is something to read.
"""

# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.chaos_verdict import judge
from bench.figures import emit
from bench.groups import NAMES, Member

RECORDS = int(os.environ.get("CHAOS_RECORDS", "1000000"))
QUEUES = MEMBERS = 4
PACE_S = 12_500
SESSION_S = 3.0
IN_FLIGHT_S = SESSION_S + 1.5
PATIENCE_S = 30.0
LEAVES_AT, COMES_AT = 0.3, 0.6


async def run(kafka: str, admin_urls: Sequence[str], directory: Path) -> list[str]:
    """All figures; what of ours is not as promised."""
    topic = await asyncio.to_thread(_produced, kafka)
    failures: list[str] = []
    for rebalances in (1, 2):
        for protocol in NAMES:
            play = Play(protocol, kafka, admin_urls, topic, directory)
            verdict = await play.run(rebalances)
            if protocol == "ours" and (verdict.lost or verdict.repeated):
                failures.append(f"{rebalances} rebalances: {verdict}")
    return failures


def _produced(kafka: str) -> str:
    """A topic with all records."""
    topic = f"million-{uuid.uuid4().hex[:8]}"
    client: dict[str, Any] = {"bootstrap.servers": kafka, "broker.address.family": "v4"}
    admin = AdminClient(client)
    admin.create_topics([NewTopic(topic, QUEUES, 1)])[topic].result(30)
    producer = Producer({**client, "linger.ms": 20, "queue.buffering.max.messages": RECORDS + 1})
    for number in range(RECORDS):
        producer.produce(topic, b"x" * 100, partition=number % QUEUES)
    producer.flush(60)
    return topic


class Play:
    """One group that reads the topic once."""

    def __init__(self, protocol: str, kafka: str, admin_urls: Sequence[str], topic: str, directory: Path) -> None:
        ours = uuid.uuid4().hex[:8]
        self._protocol = protocol
        self._clients = directory / f"clients-{ours}"
        self._told: dict[str, Any] = {
            "protocol": protocol, "kafka": kafka, "topic": topic, "brokers": admin_urls, "session_s": SESSION_S,
            "group": f"bench/groups/{ours}" if protocol == "ours" else f"group-{ours}",
            "clients": str(self._clients), "queues": QUEUES, "runs": True, "pace_s": PACE_S,
        }  # fmt: skip
        self._members: list[Member] = []
        self._named: dict[str, Member] = {}

    async def run(self, rebalances: int) -> Any:
        """Read everything, with so many rebalances."""
        self._tell_clients()
        names = [await self._join() for _ in range(MEMBERS)]
        await self._until(lambda: self._read() >= LEAVES_AT * RECORDS)
        leaver = self._named.pop(names[-1])
        await leaver.end(signal.SIGTERM)
        self._tell_clients()
        if rebalances > 1:
            await self._until(lambda: self._read() >= COMES_AT * RECORDS)
            await self._join()
        await self._until(lambda: self._read() >= RECORDS)
        for member in self._named.values():
            await member.end(signal.SIGTERM)
        read = [member.read for member in self._members]
        runs = [run for each in read for its in each.values() for run in its]
        took_s = max(run.at_s for run in runs) - min(run.at_s for run in runs)
        verdict = judge(read, dict.fromkeys(range(QUEUES), RECORDS // QUEUES), IN_FLIGHT_S, 0.0)
        emit(
            "chaos", f"{NAMES[self._protocol]}: {rebalances} rebalances, all read", took_s, "s", lost=verdict.lost,
            repeated=verdict.repeated, stale=verdict.stale, longest_pause_s=round(verdict.pause_s, 2),
            moves=verdict.moves, records=RECORDS,
        )  # fmt: skip
        return verdict

    async def _join(self) -> str:
        name = f"client-{len(self._members)}"
        member = await Member.begin(**self._told, me=name)
        self._members.append(member)
        await self._until(lambda: member.joining_s > 0)
        self._named[name] = member
        self._tell_clients()
        return name

    def _tell_clients(self) -> None:
        """As RocketMQ's broker: the list of clients is another one. The others do not need it."""
        if self._protocol == "averagely":
            self._clients.write_text(json.dumps(sorted(self._named)))
            for member in self._named.values():
                member.process.send_signal(signal.SIGUSR1)

    def _read(self) -> int:
        """How far the group is, over all queues."""
        ends = dict.fromkeys(range(QUEUES), 0)
        for member in self._members:
            for queue, runs in member.read.items():
                ends[queue] = max(ends[queue], runs[-1].first + runs[-1].size)
        return sum(ends.values())

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Wait for it, as long as something is read."""
        before, changed_s = -1, time.time()
        while not holds() and time.time() - changed_s < PATIENCE_S:
            if self._read() != before:
                before, changed_s = self._read(), time.time()
            await asyncio.sleep(0.05)
