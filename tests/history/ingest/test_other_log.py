"""Records of another log are never put behind those of the log that a lake is of."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
from confluent_kafka.admin import AdminClient

from loadmanager.decisions.log import DECISIONS_TOPIC
from loadmanager.errors import Invalid
from loadmanager.history.ingest import Ingest, Options
from loadmanager.history.ingest.batch import Batches, Plan
from loadmanager.history.ingest.failpoints import NEVER, Failpoints
from loadmanager.history.ingest.positions import LOG, SILVER, Reached, reached, resume
from loadmanager.history.ingest.stream import PLAN, QUERY
from loadmanager.history.lake import Lake
from loadmanager.history.sources import KafkaSource, SqliteSource
from loadmanager.model.load import BROKERS_TOPIC
from stack.servers import KafkaServer
from statechannel.adapters.kafka.log import KafkaLog
from statechannel.ports import Payload, TopicSpec
from tests.history.ingest import material
from tests.servers import topic_prefix

SPEC = TopicSpec(BROKERS_TOPIC, 1, compacted=True, followed=True)
PLACE = (BROKERS_TOPIC, 0)
WAIT_S = 240.0
OPTIONS = Options(partitions=material.PARTITIONS, trigger_s=0.5)
pytestmark = pytest.mark.timeout(900)


def reports(count: int, seed: int = 1) -> list[Payload]:
    """At least so many: some are there twice."""
    return material.loads(Random(seed), count, material.BASE_MS)[BROKERS_TOPIC]


def until(holds: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.2)


def kept(lake: Lake) -> tuple[int, int]:
    """How far the lake is, and how many records it has."""
    return reached(lake, SILVER).next_offsets[PLACE], lake.table("bronze").count()


async def write(source: KafkaSource, payloads: list[Payload]) -> None:
    log = KafkaLog(source.bootstrap, topic_prefix=source.prefix, development=True, request_timeout_s=30.0)
    await log.start(timeout_s=60)
    try:
        await log.open_topic(SPEC)
        await log.append(BROKERS_TOPIC, 0, payloads)
    finally:
        await log.close()


def delete(source: KafkaSource) -> None:
    admin = AdminClient({"bootstrap.servers": source.bootstrap})
    for answer in admin.delete_topics([source.prefix + BROKERS_TOPIC]).values():
        answer.result(30)
    until(lambda: source.topic_ids([BROKERS_TOPIC]) == {}, "the topic is gone")


@pytest.fixture
def source(kafka_server: KafkaServer) -> KafkaSource:
    return KafkaSource(kafka_server.address, topic_prefix("history.other"))


@pytest.mark.kafka
def test_a_topic_created_again_while_it_is_followed_ends_the_run(spark, lake, source):
    first, second = reports(20), reports(50, seed=2)
    asyncio.run(write(source, first))
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(Ingest(lake, source, OPTIONS).run, stop)
        try:
            until(lambda: running.done() or PLACE in reached(lake, SILVER).next_offsets, "the first records")
            known = source.topic_ids([BROKERS_TOPIC])[BROKERS_TOPIC]
            delete(source)
            asyncio.run(write(source, second))
            with pytest.raises(Invalid, match=f"created again: .* records of {re.escape(known)}.*lake of its own"):
                running.result(WAIT_S)
        finally:
            stop.set()
    assert kept(lake) == (len(first), len(first))
    with pytest.raises(Invalid, match="deleted and created again"):
        Ingest(lake, source, OPTIONS).run_available()  # with its checkpoint
    assert kept(lake) == (len(first), len(first))


@pytest.mark.kafka
def test_a_lake_of_an_older_release_learns_the_id_and_goes_on(spark, lake, source):
    first, more = reports(5), reports(5, seed=2)
    asyncio.run(write(source, first))
    Ingest(lake, source, OPTIONS).run_available()
    lake.remove("progress", f"stage = '{LOG}'")
    asyncio.run(write(source, more))
    Ingest(lake, source, OPTIONS).run_available()
    assert kept(lake) == (len(first + more), len(first + more))
    [row] = lake.table("progress").where(f"stage = '{LOG}'").collect()
    assert {row["topic"]: row["log_id"]} == source.topic_ids([BROKERS_TOPIC])


def test_offsets_that_go_back_behind_spark_are_refused_and_others_skipped(spark, lake, tmp_path):
    log: material.Log = {PLACE: reports(12)}

    def run(*passed: tuple[str, int]) -> Batches:
        plan = Plan(SqliteSource(tmp_path / "none.db"), material.PARTITIONS, NEVER)
        return Batches(lake.root, plan, "run", passed=frozenset(passed))

    def take(run: Batches, begin: float, end: float) -> int:
        run(material.raw(spark, log, begin, end), 0)
        offset, records = kept(lake)
        assert offset == records == int(max(0.3, end) * len(log[PLACE]))
        return records

    following = run()
    take(following, 0.0, 0.3)
    with pytest.raises(Invalid, match=r"came again with another record: .*lake of its own"):
        take(following, 0.1, 0.5)
    anew = run()  # the checkpoint was lost
    for begin, end in [(0.0, 0.1), (0.1, 0.2), (0.2, 0.6)]:
        take(anew, begin, end)
    with pytest.raises(Invalid, match="came again"):
        take(anew, 0.5, 1.0)
    again = run(PLACE)
    take(again, 0.4, 0.6)  # an earlier run was killed before Spark knew that this batch was done
    with pytest.raises(Invalid, match="came again"):
        take(again, 0.5, 1.0)


def test_the_checkpoint_says_which_partitions_spark_has_passed(spark, lake, tmp_path):
    source, two = SqliteSource(tmp_path / "log.db"), Options(partitions=material.PARTITIONS, max_per_trigger=6)
    asyncio.run(material.write(source.path, {(DECISIONS_TOPIC, 0): material.decisions(Random(1), 8, material.BASE_MS)}))
    checkpoint, at = lake.checkpoint(QUERY, PLAN), Reached(next_offsets={(DECISIONS_TOPIC, 0): 11, PLACE: 3})
    assert resume(spark, checkpoint, at) == frozenset()
    Ingest(lake, source, two).run_available()
    assert reached(lake, SILVER).next_offsets == {(DECISIONS_TOPIC, 0): 11}
    assert resume(spark, checkpoint, at) == {(DECISIONS_TOPIC, 0)}
    assert resume(spark, checkpoint, Reached(next_offsets={(DECISIONS_TOPIC, 0): 12})) == frozenset()


class Swapped(Failpoints):
    """When the second batch begins, another file is at the log's path."""

    def __init__(self, log: Path, other: Path) -> None:
        super().__init__({})
        self._log, self._other, self._batches = log, other, 0

    def reached(self, name: str) -> None:
        self._batches += name == "begun"
        if name == "begun" and self._batches == 2:
            replace(self._log, self._other)


def replace(log: Path, other: Path) -> None:
    for path in log.parent.glob(f"{log.name}*"):
        path.unlink()
    other.rename(log)


def test_a_log_file_that_is_replaced_by_another_is_refused(spark, lake, tmp_path):
    log, other, shorter = (tmp_path / name for name in ("log.db", "other.db", "shorter.db"))
    place = (DECISIONS_TOPIC, 0)
    for path, count in {log: 9, other: 19, shorter: 1}.items():
        asyncio.run(material.write(path, {place: material.decisions(Random(count), 20, material.BASE_MS)[:count]}))
    source, bounded = SqliteSource(log), Options(partitions=material.PARTITIONS, max_per_trigger=5)
    with pytest.raises(Invalid, match="replaced by another one while it was read"):
        Ingest(lake, source, bounded, Swapped(log, other)).run_available()
    assert (reached(lake, SILVER).next_offsets, lake.table("bronze").count()) == ({place: 5}, 5), "the first batch"
    with pytest.raises(Invalid, match=r"another record at offset \d+ than this lake.*lake of its own"):
        Ingest(lake, source, bounded).run_available()
    replace(log, shorter)
    with pytest.raises(Invalid, match=r"ends at offset 1, and offset 4 was read already: .*lake of its own"):
        Ingest(lake, source, bounded).run_available()
    assert lake.table("bronze").count() == lake.table("decision").count() == 5


class Changing(SqliteSource, frozen=True):
    """Its topics are other ones from the second look on, as if they were created again while a batch was read."""

    looks: Iterator[str] = iter(())

    def topic_ids(self, names):
        return {BROKERS_TOPIC: next(self.looks)}


def test_a_batch_during_which_a_topic_became_another_one_is_undone(spark, lake, tmp_path):
    source = Changing(tmp_path / "none.db", looks=iter(["one", "two"]))
    run = Batches(lake.root, Plan(source, material.PARTITIONS, NEVER), "run")
    with pytest.raises(Invalid, match="its id is two, and this lake has records of one"):
        run(material.raw(spark, {PLACE: reports(5)}), 0)
    assert lake.table("bronze").isEmpty()
    assert lake.table("broker_load").isEmpty()
