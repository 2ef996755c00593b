"""Reports that stand in the log twice: found whether a run remembers the first one or has to ask the lake for it."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from loadmanager.history.ingest import records
from loadmanager.history.ingest.repeats import KEPT, Recent, repeats, reports_of
from loadmanager.history.lake import Lake, Once
from loadmanager.history.schemas import RAW
from loadmanager.model.load import BROKERS_TOPIC, BrokerLoadData
from statechannel.law.record import BrokerId

A_BATCH = 4
BEGIN_MS = 1_700_000_000_000
APPENDED = datetime.fromtimestamp(BEGIN_MS / 1000 + 60, UTC)


def report(spark, offsets_and_times):
    rows = []
    for offset, at in offsets_and_times:
        value = msgspec.json.encode(BrokerLoadData(BrokerId("b:1", 1), BEGIN_MS + at))
        rows.append((BROKERS_TOPIC, 0, offset, b"b:1", value, APPENDED))
    return records.decode(spark.createDataFrame(rows, RAW))


class Run:
    """Batches of one run, each written to the lake when its repeats are known."""

    def __init__(self, spark, lake):
        self.spark, self.lake, self.recent, self.batches = spark, lake, Recent(), 0

    def batch(self, *offsets_and_times):
        decoded = report(self.spark, offsets_and_times)
        found = repeats(self.lake, reports_of(decoded), self.recent)
        self.lake.append("broker_load", records.broker_load(decoded), Once("test", self.batches))
        self.batches += 1
        return [] if found is None else sorted(row["offset"] for row in found.collect())

    def usual(self):
        """A batch of reports each of which is later than all before."""
        first = self.batches * A_BATCH
        return self.batch(*((number, number) for number in range(first, first + A_BATCH)))


@pytest.fixture
def run(spark, lake):
    return Run(spark, lake)


def test_of_two_in_one_batch_the_first_counts(run):
    assert run.batch((0, 1), (1, 2), (2, 1)) == [2]


@pytest.mark.parametrize("batches_ago", [1, KEPT, KEPT + 1])
def test_one_that_repeats_an_earlier_batch_is_found_however_long_ago_that_was(run, batches_ago):
    for _ in range(batches_ago):
        assert run.usual() == []
    assert run.batch((100, 0), (101, 1_000)) == [100]


def test_what_the_lake_had_before_the_run_is_not_forgotten(run, spark, lake):
    run.usual()
    later = Run(spark, lake)
    later.batches = run.batches
    assert later.batch((100, A_BATCH - 1), (101, 1_000)) == [100]
    assert later.batch((102, 0), (103, 2_000)) == [102]


def test_a_report_from_the_future_that_the_lake_has_is_not_forgotten(run, spark, lake):
    run.batch((0, 5_000))
    later = Run(spark, lake)
    later.batches = run.batches
    assert later.batch((1, 1)) == []
    assert later.batch((2, 5_000)) == [2]


def test_a_report_from_the_future_is_not_forgotten_with_a_later_batch_of_earlier_reports(run, spark, lake):
    run.batch((0, 5_000))
    later = Run(spark, lake)
    later.batches = run.batches
    for number in range(1, KEPT + 2):
        assert later.batch((number, number)) == []
    assert later.batch((100, 5_000)) == [100]


class Unread(Lake):
    """A lake of which no table may be read."""

    def table(self, name, *_):
        pytest.fail(f"{name} was read")


def test_the_lake_is_not_asked_for_what_is_remembered(run, lake):
    run.usual()
    run.lake = Unread(lake.spark, lake.root)
    assert run.usual() == []
