"""The backlog of a consumer group with very many partitions: the whole picture, and one changed partition.

With `--log kafka` also the reading of it, from a Kafka of its own that has KAFKA_PARTITIONS. So the figure for 100,000
is the sum of many readings, not one reading.
"""

# pyright: reportPrivateImportUsage=false
# (the client documents these names under `confluent_kafka.admin` and does not declare them exported)
from __future__ import annotations

import asyncio
import math
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bench.figures import emit, median, percentile
from loadmanager.consumers.backlog.figures import GroupBacklog, Offsets, backlog_of, total
from loadmanager.consumers.backlog.in_flight import InFlight
from loadmanager.consumers.backlog.metrics import backlog_metrics

TOPICS = 10
PARTITIONS = 100_000
CHANGES = 100_000
RECORDS = 1_000_000
NOW_MS = 1_700_000_000_000

KAFKA_PARTITIONS = 2_000
"""Made in seconds. A server needs one file handle and two memory maps for each, so 20,000 and 65,530 are bounds too."""
ROUNDS = 5
AGES = 1_000


def run(kind: str) -> None:
    """All figures of this bench."""
    _picture()
    _changes()
    _in_flight()
    if kind == "kafka":
        with _kafka() as address:
            asyncio.run(_read(address))


# --- the sums alone
def _offsets(rng: random.Random) -> Offsets:
    end = rng.randrange(1_000_000)
    pull = rng.randrange(end + 1)
    consumer = rng.randrange(pull + 1)
    return Offsets(end, consumer, pull, 0, NOW_MS - rng.randrange(100_000), NOW_MS - rng.randrange(50_000))


def _given() -> list[tuple[str, int, Offsets]]:
    rng, each = random.Random(1), PARTITIONS // TOPICS
    return [(f"topic-{topic}", queue, _offsets(rng)) for topic in range(TOPICS) for queue in range(each)]


def _made(given: list[tuple[str, int, Offsets]]) -> GroupBacklog:
    group = GroupBacklog("bench")
    for topic, queue, offsets in given:
        group.put(topic, queue, offsets)
    return group


def _picture() -> None:
    given = _given()
    began_s = time.perf_counter()
    group = _made(given)
    took_s = time.perf_counter() - began_s
    emit(
        "lag",
        f"sums of {PARTITIONS:,} partitions made",
        took_s,
        "s",
        us_a_partition=round(took_s / PARTITIONS * 1e6, 2),
    )
    began_s = time.perf_counter()
    whole = total(backlog_of(offsets, NOW_MS) for _, _, offsets in given)
    slow_s = time.perf_counter() - began_s
    began_s = time.perf_counter()
    assert group.sum(NOW_MS) == whole
    emit(
        "lag",
        "sum of the group and its topics",
        (time.perf_counter() - began_s) * 1e3,
        "ms",
        all_added_ms=round(slow_s * 1e3, 1),
    )
    for by_partition in (False, True):
        began_s = time.perf_counter()
        samples = sum(len(each.samples) for each in backlog_metrics([group], NOW_MS, by_partition=by_partition))
        took_ms = (time.perf_counter() - began_s) * 1e3
        emit("lag", f"metrics {'by partition' if by_partition else 'by topic'}", took_ms, "ms", samples=samples)


def _changes() -> None:
    group, rng = _made(_given()), random.Random(2)
    each = PARTITIONS // TOPICS
    changes = [(f"topic-{rng.randrange(TOPICS)}", rng.randrange(each), _offsets(rng)) for _ in range(CHANGES)]
    began_s = time.perf_counter()
    for topic, queue, offsets in changes:
        group.put(topic, queue, offsets)
    put_us = (time.perf_counter() - began_s) / CHANGES * 1e6
    took_us: list[float] = []
    for topic, queue, offsets in changes[: CHANGES // 20]:
        began_s = time.perf_counter()
        group.put(topic, queue, offsets)
        group.sum(NOW_MS)
        took_us.append((time.perf_counter() - began_s) * 1e6)
    emit("lag", f"a changed partition of {PARTITIONS:,}", put_us, "µs", with_new_sum_us=round(median(took_us), 1))


def _in_flight() -> None:
    order = list(range(RECORDS))
    random.Random(3).shuffle(order)
    queue = InFlight(0)
    began_s = time.perf_counter()
    queue.pulled(range(RECORDS))
    for offset in order:
        queue.consumed(offset)
    took_s = time.perf_counter() - began_s
    assert queue.commit == RECORDS
    emit("lag", f"{RECORDS:,} records pulled, consumed in random order", took_s / RECORDS * 1e6, "µs a record")


# --- Kafka
@contextmanager
def _kafka() -> Iterator[str]:
    from stack.servers import KafkaServer

    directory = Path(tempfile.mkdtemp(prefix="bench-"))
    server = KafkaServer(directory)
    server.heap = "2g"
    try:
        server.start()
        yield server.address
    finally:
        server.kill()
        shutil.rmtree(directory, ignore_errors=True)


async def _read(address: str) -> None:
    from loadmanager.consumers.backlog.reading import BacklogReader
    from statechannel.adapters.kafka.groups import KafkaGroups

    await asyncio.to_thread(_fill, address)
    groups = KafkaGroups(address, request_timeout_s=60.0)
    reader = BacklogReader(groups, asyncio.to_thread)
    topics = [f"topic-{topic}" for topic in range(TOPICS)]
    counts = await groups.queues(topics)
    queues = {topic: range(count) for topic, count in counts.items()}
    partitions = sum(counts.values())
    parts = {
        "committed offsets": lambda: groups.committed("behind"),
        "numbers of partitions": lambda: groups.queues(topics),
        "ends": lambda: groups.ends(queues),
    }
    for name, ask in parts.items():
        took = [await _timed(ask) for _ in range(ROUNDS)]
        emit("lag", f"{name}, {partitions:,} partitions", median(took), "s", longest_s=round(max(took), 3))
    rounds = math.ceil(PARTITIONS / partitions)
    for group in ("level", "behind"):
        took = [await _timed(lambda group=group: reader.read(group)) for _ in range(max(rounds, ROUNDS))]
        emit(
            "lag", f"whole picture, group {group}, {partitions:,} partitions", median(took), "s",
            p99_s=round(percentile(took, 99), 3), us_a_partition=round(median(took) / partitions * 1e6, 1),
        )  # fmt: skip
        spent_s = sum(took[:rounds]) * PARTITIONS / (rounds * partitions)
        emit(
            "lag",
            f"{PARTITIONS:,} partitions in {rounds} readings, group {group}",
            spent_s,
            "s",
            target="< 2",
            met=spent_s < 2,
        )
    took_s = await _timed(lambda: reader.read("behind", ages=AGES))
    known = await reader.read("behind", ages=AGES)
    undated = known.sum(NOW_MS).undated
    emit("lag", f"the same with the ages of {AGES:,} queues", took_s, "s", dated=partitions - undated)


async def _timed(ask) -> float:
    began_s = time.perf_counter()
    await ask()
    return time.perf_counter() - began_s


def _fill(address: str) -> None:
    """Topics with one record in each partition; a group that has consumed them, and one that has not."""
    from confluent_kafka import KafkaException, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic

    from statechannel.adapters.kafka.clients import connection_settings
    from statechannel.adapters.kafka.group_offsets import GroupOffsets

    connection: dict[str, Any] = {"bootstrap.servers": address, "broker.address.family": "v4"}
    offsets = GroupOffsets(connection_settings(address, {}, 300.0))
    admin, began_s, each = AdminClient(connection), time.perf_counter(), KAFKA_PARTITIONS // TOPICS
    for topic in range(TOPICS):
        new = NewTopic(f"topic-{topic}", each, 1, config={"segment.index.bytes": "4096"})
        admin.create_topics([new], operation_timeout=300, request_timeout=300)[new.topic].result(300)
    producer = Producer(connection | {"queue.buffering.max.messages": 1_000_000})
    places = [(f"topic-{topic}", queue) for topic in range(TOPICS) for queue in range(each)]
    for topic, queue in places:
        producer.produce(topic, b"x", partition=queue)
    assert producer.flush(300) == 0
    for group, offset in (("level", 1), ("behind", 0)):
        wanted = [TopicPartition(*place, offset) for place in places]
        while True:  # a new Kafka takes a moment to know who keeps a group's offsets
            with suppress(KafkaException):
                done = offsets.commit(group, wanted, 300)
                if not any(place.error for place in done):
                    break
    took_s = time.perf_counter() - began_s
    emit("lag", f"{KAFKA_PARTITIONS:,} partitions created, with a record and two groups", took_s, "s")
