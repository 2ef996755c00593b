"""Records of everything that an ingest has to cope with, made from one seed: as rows, or in the embedded log's file.

Reports come twice, late, out of order, damaged, or not at all (a deletion); one decision is of a newer format; the
channel has accepted, refused and unreadable records, in two partitions.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from random import Random

import msgspec
from pyspark.sql import DataFrame, SparkSession

from loadmanager.decisions.codec import encode as encode_decision
from loadmanager.decisions.log import DECISIONS
from loadmanager.decisions.record import DecisionRecord
from loadmanager.diagnostics.topics import CHANNEL_TOPIC
from loadmanager.history.schemas import RAW
from loadmanager.model.host import BundleLoad
from loadmanager.model.load import BROKERS_TOPIC, BUNDLES_TOPIC, BrokerLoadData, LoadedBundle, TopBundlesLoadData
from loadmanager.strategies.rebalancing.decision import Decision, Move, Stage
from statechannel.adapters.sqlite.log import SqliteLog
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId
from statechannel.ports import Payload, TopicSpec
from tests.history.decoding.records import sealed
from tests.history.folding.tasks import history

PARTITIONS = 2
BASE_MS = 1_767_225_600_000
"""2026-01-01: reports are measured from here on."""

APART_MS = 7_000
BUNDLES = [Bundle("t/n", number << 28, (number + 1) << 28) for number in range(8)]
TOPICS = (
    TopicSpec(CHANNEL_TOPIC, PARTITIONS),
    TopicSpec(BROKERS_TOPIC, 1, compacted=True),
    TopicSpec(BUNDLES_TOPIC, 1, compacted=True),
    DECISIONS,
)
_json = msgspec.json.Encoder().encode


Log = dict[tuple[str, int], list[Payload]]
"""By topic and partition."""


def records(seed: int, reports: int = 60, steps: int = 80, at_ms: int = BASE_MS) -> Log:
    """What the topics hold."""
    rng, entries = Random(seed), history(seed, steps)
    channel = {
        (CHANNEL_TOPIC, partition): [Payload(None, entry.value) for entry in entries if entry.partition == partition]
        for partition in range(PARTITIONS)
    }
    reported = {(topic, 0): payloads for topic, payloads in loads(rng, reports, at_ms).items()}
    return channel | reported | {(DECISIONS.name, 0): decisions(rng, 8, at_ms)}


def part(log: Log, begin: float, end: float) -> Log:
    """Of each partition the part from `begin` to `end`; of a compacted topic all at the beginning, as nothing replaces
    it then.
    """
    compacted = {spec.name for spec in TOPICS if spec.compacted}
    cuts = {key: (begin > 0, 1) if key[0] in compacted else (begin, end) for key in log}
    return {key: each[int(cuts[key][0] * len(each)) : int(cuts[key][1] * len(each))] for key, each in log.items()}


def raw(spark: SparkSession, log: Log, begin: float = 0.0, end: float = 1.0) -> DataFrame:
    """Rows of RAW: of each partition the part from `begin` to `end`."""
    rows = [
        (topic, partition, offset, payload.key, payload.value, appended(offset))
        for (topic, partition), payloads in log.items()
        for offset, payload in enumerate(payloads)
        if int(begin * len(payloads)) <= offset < int(end * len(payloads))
    ]
    return spark.createDataFrame(rows, RAW)


def appended(offset: int) -> datetime:
    """When the log took a record."""
    return datetime.fromtimestamp((BASE_MS + offset * APART_MS) / 1000, UTC)


async def write(path: Path, log: Log) -> None:
    """Append to the embedded log's file at `path`, which need not be there yet."""
    file = SqliteLog(path)
    await file.start(timeout_s=60)
    try:
        for spec in TOPICS:
            await file.open_topic(spec)
        for (topic, partition), payloads in log.items():
            await file.append(topic, partition, payloads)
    finally:
        await file.close()


def loads(rng: Random, reports: int, at_ms: int) -> dict[str, list[Payload]]:
    """Reports of three brokers, as the log takes them."""
    brokers, bundles = list[Payload](), list[Payload]()
    for number in range(reports):
        broker = BrokerId(f"b{number % 3}:1", 1 + (number > reports // 2))
        late_ms = 3_600_000 if number % 17 == 5 else 0
        sampled_ms = at_ms + number * APART_MS - late_ms
        key = broker.name.encode()
        brokers.append(Payload(key, _json(broker_load(rng, broker, sampled_ms))))
        bundles.append(Payload(key, _json(top_bundles(rng, broker, sampled_ms))))
    return {BROKERS_TOPIC: _troubled(rng, brokers), BUNDLES_TOPIC: _troubled(rng, bundles)}


def broker_load(rng: Random, broker: BrokerId, sampled_ms: int) -> BrokerLoadData:
    """A report."""
    cpu_percent = rng.uniform(5, 95)
    return BrokerLoadData(broker, sampled_ms, cpu_percent, in_rate_msg_s=rng.uniform(0, 1e4), capacity={"cpu": 4.0})


def top_bundles(rng: Random, broker: BrokerId, sampled_ms: int) -> TopBundlesLoadData:
    """A report."""
    top = tuple(
        LoadedBundle(bundle, BundleLoad(keys=number, in_rate_msg_s=rng.uniform(0, 1e3), cpu_percent=rng.uniform(0, 9)))
        for number, bundle in enumerate(rng.sample(BUNDLES, 3))
    )
    return TopBundlesLoadData(broker, sampled_ms, top, BundleLoad(keys=9, in_rate_msg_s=2e3), 5)


def decisions(rng: Random, count: int, at_ms: int) -> list[Payload]:
    """Rounds of a leader; one comes twice, one is of a format that this release does not know, one is damaged."""
    leader, other = BrokerId("b0:1", 1), BrokerId("b1:1", 1)
    values = [
        encode_decision(
            DecisionRecord(
                id=f"3.{at_ms + number}",
                at_ms=at_ms + number * 60_000,
                leader=leader,
                strategy="threshold",
                settings={"x": number},
                decision=Decision(
                    (Move(rng.choice(BUNDLES), leader, other, "too hot", Stage.POLICY, gain=0.5),) * (number % 3),
                    "so it was",
                    spread_before=1.0,
                    spread_after=0.5,
                ),
            )
        )
        for number in range(count)
    ]
    return [Payload(None, value) for value in (*values, values[2], sealed(b"later", 99), values[0][:-3])]


def _troubled(rng: Random, payloads: list[Payload]) -> list[Payload]:
    """Some moved from their place, some twice, some damaged, and one broker's deleted."""
    moved = list(payloads)
    for place in rng.sample(range(len(moved) - 1), len(moved) // 8):
        moved[place], moved[place + 1] = moved[place + 1], moved[place]
    for again in rng.sample(payloads, len(payloads) // 10):
        moved.insert(rng.randrange(moved.index(again) + 1, len(moved) + 1), again)
    moved.insert(rng.randrange(len(moved)), Payload(b"b1:1", b"{damaged"))
    moved.insert(rng.randrange(len(moved)), Payload(b"b2:1", None))
    return moved
