"""The ingest against Spark's own reading and writing of the same topics, and how long a record takes to the lake.

Always on a Kafka server of its own. Of the records 40 % are reports of brokers, 40 % reports of ten bundles each (so
that silver gets some five rows a record), 20 % are of the channel, in four partitions with 2,000 bundles.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench.channel_log import ChannelLog
from bench.figures import emit
from loadmanager.diagnostics.topics import CHANNEL_TOPIC
from loadmanager.history import jars
from loadmanager.history.ingest import Ingest, Options, refresh_gold
from loadmanager.history.ingest.failpoints import Failpoints
from loadmanager.history.lake import Lake
from loadmanager.history.session import Spark, session
from loadmanager.history.sources import TOPICS, KafkaSource
from loadmanager.model.host import BundleLoad
from loadmanager.model.load import BROKERS_TOPIC, BUNDLES_TOPIC, BrokerLoadData, LoadedBundle, TopBundlesLoadData
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId

PREFIX = "bench."
PARTITIONS = 4
BUNDLES = 2_000
BUNDLES_A_REPORT = 10
BROKERS = 100
RECORDS = 600_000
RATES_S = (3_700, 20_000)
"""Records a second: the first are 20,000 rows a second of the silver tables, the second more than 100,000."""
RUN_S = 60
STARTING_S = 60
"""Before RUN_S, not counted: what a job that has just begun with a topic takes longer for."""
TTL_S = 1_800.0
TRIGGER_S = 2.0
WARM_UP = 400_000

_json = msgspec.json.Encoder().encode


def run(kind: str) -> None:
    """All figures of this bench; the log of the others does not matter to it."""
    from stack.servers import KafkaServer

    jars.bring()
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        kafka = KafkaServer(Path(directory) / "kafka")
        kafka.start()
        spark = session(Spark(memory="3g"))
        spark.sparkContext.setLogLevel("ERROR")
        try:
            _throughput(spark, kafka.address, Path(directory))
            for rate_s in RATES_S:
                _lag(spark, kafka.address, Path(directory), rate_s)
        finally:
            spark.stop()
            kafka.stop()


class Clock(Failpoints):
    """When the points of batches were passed; nothing fails at them."""

    def __init__(self) -> None:
        super().__init__({})
        self.times: dict[str, list[float]] = {}

    def reached(self, name: str) -> None:
        self.times.setdefault(name, []).append(time.time())

    def between(self, begin: str, end: str) -> float:
        """Seconds from one point to the other, of all batches."""
        return sum(b - a for a, b in zip(self.times[begin], self.times[end], strict=True))


def _throughput(spark: SparkSession, address: str, directory: Path) -> None:
    for prefix, records in (("warm.", WARM_UP), (PREFIX, RECORDS)):
        topics(address, prefix)
        produce(address, prefix, records, 0.0)
    _ingested(spark, address, "warm.", directory / "warm")
    source = KafkaSource(address, PREFIX)
    floor_s = min(_timed(lambda n=n: _plain(source.read(spark, TOPICS), directory / f"plain-{n}")) for n in range(2))
    clock, lake = _ingested(spark, address, PREFIX, directory / "lake")
    assert lake.table("bronze").count() == RECORDS
    assert lake.table("transition").count() > RECORDS // 5, "the channel's records were not accepted"
    rows = _silver_rows(lake)
    cores = int(spark.sparkContext.defaultParallelism)
    floor = RECORDS / floor_s / cores
    rate = RECORDS / clock.between("begun", "progress") / cores
    emit(
        "ingest", "Kafka to bronze and silver, a core", rate, "records/s", floor=floor,
        target="ratio ≥ 0.35", met=rate >= 0.35 * floor, records=RECORDS, silver_rows=rows,
    )  # fmt: skip
    took_s = _timed(lambda: refresh_gold(lake, TTL_S, everything=True))
    emit("ingest", "silver to gold, all of it", rows / took_s, "rows/s", seconds=round(took_s, 2))


def _plain(rows: DataFrame, where: Path) -> None:
    rows.write.parquet(str(where))


def _ingested(spark: SparkSession, address: str, prefix: str, where: Path) -> tuple[Clock, Lake]:
    clock, lake = Clock(), Lake(spark, str(where))
    options = Options(partitions=PARTITIONS, load_ttl_s=TTL_S)
    Ingest(lake, KafkaSource(address, prefix), options, clock).run_available()
    return clock, lake


def _lag(spark: SparkSession, address: str, directory: Path, rate_s: int) -> None:
    """What a record waits from its append until everything of its batch is committed."""
    prefix, stop, clock = f"lag-{rate_s}.", threading.Event(), Clock()
    topics(address, prefix)
    lake = Lake(spark, str(directory / f"lag-{rate_s}"))
    options = Options(partitions=PARTITIONS, load_ttl_s=TTL_S, trigger_s=TRIGGER_S)
    ingest = Ingest(lake, KafkaSource(address, prefix), options, clock)
    thread = threading.Thread(target=ingest.run, args=(stop,))
    thread.start()
    begun = datetime.now(UTC)
    with _producing(address, prefix, rate_s):
        pass
    while lake.table("bronze").count() < rate_s * (STARTING_S + RUN_S) and thread.is_alive():
        time.sleep(1.0)
    stop.set()
    thread.join()
    done = f.element_at(f.array(*map(f.lit, clock.times["progress"])), (f.col("batch") + 1).cast("int"))
    begin = f.col("appended_at") - f.expr(f"INTERVAL {STARTING_S} SECONDS")
    rows = lake.table("bronze").where(begin >= f.lit(begun))
    waited = rows.select((done - f.col("appended_at").cast("double")).alias("s"))
    p50, p99, longest = waited.agg(f.percentile("s", f.array(f.lit(0.5), f.lit(0.99), f.lit(1.0)))).first()[0]  # type: ignore[index]
    emit(
        "ingest", f"append to lake p99 at {rate_s:,} records/s", p99, "s", target="≤ 8 s", met=p99 <= 8.0,
        p50_s=round(p50, 2), longest_s=round(longest, 2), batches=len(clock.times["progress"]), seconds=RUN_S,
        silver_rows_s=round(_silver_rows(lake) / (STARTING_S + RUN_S)),
    )  # fmt: skip


def _silver_rows(lake: Lake) -> int:
    return sum(lake.table(table).count() for topic in TOPICS.values() for table in topic.tables)


@contextmanager
def _producing(address: str, prefix: str, rate_s: int) -> Generator[None]:
    """So many records a second, from a process of its own; waits for its end."""
    process = multiprocessing.get_context("spawn").Process(
        target=produce, args=(address, prefix, rate_s * (STARTING_S + RUN_S), float(rate_s))
    )
    process.start()
    try:
        yield
    finally:
        process.join()


def topics(address: str, prefix: str) -> None:
    """Make those that are read."""
    from confluent_kafka.admin import AdminClient, NewTopic  # pyright: ignore[reportPrivateImportUsage]

    wanted = {CHANNEL_TOPIC: PARTITIONS, BROKERS_TOPIC: 1, BUNDLES_TOPIC: 1}
    admin = AdminClient({"bootstrap.servers": address})
    made = admin.create_topics([NewTopic(prefix + name, count, 1) for name, count in wanted.items()])
    for future in made.values():
        future.result()


def produce(address: str, prefix: str, count: int, rate_s: float) -> None:
    """Write so many records of the mix; with a rate, not faster than that."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": address,
            "linger.ms": 20,
            "compression.type": "lz4",
            "enable.idempotence": True,  # without it what is sent again comes late, and the channel refuses the rest
            "queue.buffering.max.messages": 500_000,
        }
    )
    begin = time.monotonic()
    for number, (topic, partition, key, value) in enumerate(mixed(count)):
        while len(producer) > 400_000:
            producer.poll(0.1)
        producer.produce(prefix + topic, value, key, partition)
        if rate_s and number % 200 == 0:
            producer.poll(0)
            time.sleep(max(0.0, begin + number / rate_s - time.monotonic()))
    producer.flush()


def mixed(count: int) -> Iterator[tuple[str, int, bytes | None, bytes]]:
    """Topic, partition, key and value of each record."""
    log = ChannelLog(PARTITIONS, BUNDLES // PARTITIONS)
    parts = [log.part(partition) for partition in range(PARTITIONS)]
    reports = [(BROKERS_TOPIC, _broker_reports()), (BUNDLES_TOPIC, _bundle_reports())]
    begin_ms = time.time_ns() // 1_000_000
    for number in range(count):
        turn, place = divmod(number, 5)
        if place == 4:
            offset, partition = divmod(turn, PARTITIONS)
            yield CHANNEL_TOPIC, partition, None, parts[partition].value(offset)
        else:
            topic, made = reports[place % 2]
            key, before, after = made[turn % BROKERS]
            yield topic, 0, key, before + str(begin_ms + 2 * turn + place // 2).encode() + after


Template = tuple[bytes, bytes, bytes]
"""The key of a report, and its value before and behind the time: encoding each one again takes the cores from Spark."""


def _template(broker: BrokerId, report: BrokerLoadData | TopBundlesLoadData) -> Template:
    before, _, after = _json(report).partition(str(_SOME_MS).encode())
    return broker.name.encode(), before, after


def _broker_reports() -> list[Template]:
    capacity = {"cpu": 8.0, "memory_bytes": 3.4e10}
    return [
        _template(
            broker,
            BrokerLoadData(
                broker, _SOME_MS, 37.5 + number % 20, 41.25, 1.5e6, 2.25e6, 1200.5, 2400.25, 50, 5_000, 800, capacity,
                55.5, 60.25,
            ),
        )
        for number, broker in enumerate(_REPORTERS)
    ]  # fmt: skip


def _bundle_reports() -> list[Template]:
    cost = BundleLoad(100, 16, 25.5, 50.25, 3.1e4, 4.2e4, 1.25)
    return [
        _template(broker, TopBundlesLoadData(broker, _SOME_MS, _hottest(number, cost), cost, 50))
        for number, broker in enumerate(_REPORTERS)
    ]


def _hottest(number: int, cost: BundleLoad) -> tuple[LoadedBundle, ...]:
    first = number * BUNDLES_A_REPORT
    return tuple(LoadedBundle(_BUNDLES[(first + rank) % len(_BUNDLES)], cost) for rank in range(BUNDLES_A_REPORT))


_SOME_MS = 1_234_567_890_123
_REPORTERS = [BrokerId(f"broker-{number}:6650", 1) for number in range(BROKERS)]
_BUNDLES = [Bundle("bench/load", number << 20, (number + 1) << 20) for number in range(512)]


def _timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
