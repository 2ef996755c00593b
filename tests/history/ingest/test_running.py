"""A run takes what there is when it begins: all of it, in as many batches as it takes, and then ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from loadmanager.decisions.log import DECISIONS_TOPIC
from loadmanager.errors import Unavailable
from loadmanager.history.ingest import Ingest, Options
from loadmanager.history.ingest.failpoints import Failpoints
from loadmanager.history.ingest.positions import SILVER, reached
from loadmanager.history.ingest.stream import SLOW_START, STARTS, patiently
from loadmanager.history.sources import TOPICS, SqliteSource
from tests.history.ingest import material

BOUND = 60
pytestmark = pytest.mark.timeout(600)


class Busy(Failpoints):
    """Whenever a batch begins, brokers have written more."""

    MOST = 12

    def __init__(self, log: Path, more: material.Log) -> None:
        super().__init__({})
        self.batches = 0
        self._log, self._more = log, more

    def reached(self, name: str) -> None:
        if name == "begun" and self.batches < self.MOST:
            self.batches += 1
            asyncio.run(material.write(self._log, self._more))


def test_a_run_takes_all_there_is_in_bounded_batches_and_ends_however_much_is_written_meanwhile(spark, lake, tmp_path):
    log, source = material.records(3, reports=20, steps=60), SqliteSource(tmp_path / "log.db")
    more = {(DECISIONS_TOPIC, 0): log[DECISIONS_TOPIC, 0][:5]}
    asyncio.run(material.write(source.path, log))
    there, busy = source.read(spark, TOPICS).count(), Busy(source.path, more)
    Ingest(lake, source, Options(partitions=material.PARTITIONS, max_per_trigger=BOUND), busy).run_available()
    ends = {key: len(payloads) for key, payloads in log.items()}
    assert reached(lake, SILVER).next_offsets == ends, "what was there when it began"
    assert lake.table("bronze").count() == there
    assert max(row["count"] for row in lake.table("bronze").groupBy("batch").count().collect()) <= BOUND
    assert sum(ends.values()) / BOUND <= busy.batches < busy.MOST
    Ingest(lake, source, Options(partitions=material.PARTITIONS)).run_available()
    ends[DECISIONS_TOPIC, 0] += busy.batches * 5
    assert reached(lake, SILVER).next_offsets == ends, "the next run takes the rest"


@pytest.mark.parametrize("failures", range(STARTS))
def test_a_python_that_was_slow_to_start_is_started_again(failures):
    left = [Unavailable(f"the stream stopped: {SLOW_START}.")] * failures

    def work() -> None:
        if left:
            raise left.pop()

    patiently(work)
    assert left == []


@pytest.mark.parametrize(("why", "tries"), [(SLOW_START, STARTS), ("the log is gone", 1)])
def test_other_failures_and_too_many_are_told(why, tries):
    tried: list[None] = []

    def work() -> None:
        tried.append(None)
        raise Unavailable(why)

    with pytest.raises(Unavailable, match=why):
        patiently(work)
    assert len(tried) == tries
