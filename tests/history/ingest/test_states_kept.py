"""Which states of the fold stay when the older ones are dropped."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from loadmanager.diagnostics.topics import CHANNEL_TOPIC
from loadmanager.history.ingest.channel import forget
from loadmanager.history.ingest.positions import SILVER, Mark, advance
from loadmanager.history.lake import Once
from loadmanager.history.schemas import CHANNEL_STATE

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
A_DAY = 4
"""Batches of each day."""


def state(partition: int, batch: int):
    return (partition, batch, 10 * batch + 20, 0, 1, b"", None)


def test_the_one_in_force_the_last_of_each_day_and_the_seed_stay(spark, lake):
    batches = range(3 * A_DAY - 1)
    rows = [state(0, -1), *(state(partition, batch) for partition in (0, 1) for batch in batches)]
    lake.append("channel_state", spark.createDataFrame(rows, CHANNEL_STATE), Once("test", 1))
    for batch in batches:
        at_us = int((NOON + timedelta(days=batch // A_DAY)).timestamp() * 1_000_000)
        marks = [Mark(CHANNEL_TOPIC, 0, 10 * batch + 20, 10, at_us), Mark("another", 1, batch, 1, at_us)]
        advance(lake, SILVER, batch, marks)
    forget(lake, batches[-2])
    kept = {(row.partition, row.batch) for row in lake.table("channel_state").collect()}
    assert kept == {(0, -1), (0, 3), (0, 7), (0, 9), (0, 10), (1, 9), (1, 10)}
