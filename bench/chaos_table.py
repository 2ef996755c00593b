"""The table of the first work on this: a million messages, four queues, four consumers, one rebalance and two.

The records are there before the consumers. When all of these read, as slowly as HELD_S, they are let go: each takes
RATE_S records a second at most, so that the rebalance comes in the middle. At a quarter of the records the third
consumer leaves in order; in the second round it comes back, in a new process, at half of them.
"""

from __future__ import annotations

import asyncio
import signal
import time
import uuid
from collections.abc import Mapping

from confluent_kafka import Producer

from bench.chaos_commits import GroupHistory
from bench.chaos_play import SESSION_S
from bench.figures import emit
from bench.group_reads import count, lost
from bench.groups import NAMES, NAMESPACE, Member, coordinators, gathered, make_topic, until
from bench.peers.rocketmq import ConsumerIds

MESSAGES = 1_000_000
QUEUES, CONSUMERS, LEAVES = 4, 4, 2
RATE_S, HELD_S = 12_500.0, 50.0
LEAVES_AT, BACK_AT = 0.25, 0.5
GATHER_S = 0.05
"""Records read within so long are told together, so no pause is known better."""
BEGIN_S, END_S = 60.0, 240.0
ROUNDS = {1: "rebalance once", 2: "rebalance twice"}
CLIENT = {"fetch.message.max.bytes": 32_768, "queued.min.messages": 2_000, "fetch.queue.backoff.ms": 10, "log_level": 2}
"""A client gets records of both of its partitions in turn, not a second of one and then a second of the other."""


async def table(kafka: str, messages: int) -> bool:
    """Run all rounds. Returns True if ours is as it must be."""
    topic, met = f"table-{uuid.uuid4().hex[:8]}", True
    make_topic(kafka, topic, QUEUES)
    await asyncio.to_thread(_fill, kafka, topic, messages)
    ids = ConsumerIds()
    ids_port = await ids.start()
    try:
        async with coordinators(kafka) as admin_urls:
            for protocol in ("ours", "rocketmq", "classic", "consumer"):
                for rebalances in ROUNDS:
                    told = {
                        "protocol": protocol, "kafka": kafka, "topic": topic, "brokers": admin_urls, "rate_s": RATE_S,
                        "session_s": SESSION_S, "gather_s": GATHER_S, "partitions": QUEUES, "ids_port": ids_port,
                        "kafka_settings": CLIENT, "group": f"{NAMESPACE}/{uuid.uuid4().hex[:8]}",
                    }  # fmt: skip
                    met &= await Round(told, messages, rebalances).play() or protocol != "ours"
    finally:
        await ids.close()
    return met


class Round:
    """A group that reads all of the topic."""

    def __init__(self, told: Mapping[str, object], messages: int, rebalances: int) -> None:
        self._told, self._messages, self._rebalances = told, messages, rebalances
        self._sent = {queue: len(range(queue, messages, QUEUES)) for queue in range(QUEUES)}
        self._all: list[Member] = []

    async def play(self) -> bool:
        """Play it, print its figures. Returns True if nothing was lost, reread needlessly, or read by two at once."""
        try:
            for place in range(CONSUMERS):
                await self._join(place, held_s=HELD_S)
            await until(self._everybody_reads, BEGIN_S)
            since_s = time.time()
            for member in self._all:
                member.process.send_signal(signal.SIGUSR1)
            await until(lambda: self._share() >= LEAVES_AT, END_S)
            await self._all[LEAVES].end(signal.SIGTERM)
            if self._rebalances > 1:
                await until(lambda: self._share() >= BACK_AT, END_S)
                await self._join(LEAVES)
            await until(lambda: not lost(gathered(self._all), self._sent), END_S)
        finally:
            for member in self._all:
                await member.end(signal.SIGTERM)
        return await self._figures(since_s)

    async def _figures(self, since_s: float) -> bool:
        told = {key: str(value) for key, value in self._told.items()}
        history = await asyncio.to_thread(GroupHistory, told["kafka"], told["group"], told["topic"])
        found = count(gathered(self._all), self._sent, history.commits, since_s)
        met = not (found.lost or found.not_in_flight or found.overlaps)
        emit(
            "chaos", f"{NAMES[told['protocol']]}: {ROUNDS[self._rebalances]}, to read everything",
            found.read_s - since_s, "s", messages=self._messages, met=met, lost=found.lost,
            duplicates=found.duplicates, not_in_flight=found.not_in_flight, overlaps=found.overlaps,
            overlap_s=round(found.overlap_s, 2), pause_s=round(found.silence_s, 2), moved=found.moved,
        )  # fmt: skip
        return met

    async def _join(self, place: int, held_s: float = 0.0) -> None:
        more = {"id": f"consumer-{place}", "held_s": held_s}
        self._all.append(await Member.start({**self._told, **more}, len(self._all)))

    def _everybody_reads(self) -> bool:
        reads = [member.reads_since(time.time() - 1.0) for member in self._all]
        return all(len(each) == QUEUES // CONSUMERS for each in reads) and len(set().union(*reads)) == QUEUES

    def _share(self) -> float:
        return 1 - lost(gathered(self._all), self._sent) / self._messages


def _fill(kafka: str, topic: str, messages: int) -> None:
    producer = Producer({
        "bootstrap.servers": kafka, "broker.address.family": "v4", "linger.ms": 5, "batch.num.messages": 200,
    })  # fmt: skip
    for number in range(messages):
        while True:
            try:
                producer.produce(topic, b"x" * 100, partition=number % QUEUES)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0
