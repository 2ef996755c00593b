"""What it costs to know how far the ingest is does not grow with the number of its batches."""

from __future__ import annotations

from loadmanager.history.ingest import positions
from loadmanager.history.ingest.positions import SILVER, Mark, Reached, advance, stages
from loadmanager.history.utc import DAY_US

EVERY, BATCHES = 5, 22
GOLD = "broker_minute"


def mark(topic: str, batch: int) -> Mark:
    """Three records a batch; ten batches a day."""
    return Mark(topic, 0, 3 * (batch + 1), 3, batch * DAY_US // 10)


def test_many_batches_leave_few_files_and_all_that_is_asked_of_them(lake, monkeypatch):
    monkeypatch.setattr(positions, "JOINED_EVERY", EVERY)
    for batch in range(BATCHES):
        topics = ("load-brokers",) if batch else ("load-brokers", "decisions")
        advance(lake, SILVER, batch, [mark(topic, batch) for topic in topics])
        if batch < BATCHES // 2:
            advance(lake, GOLD, batch, [mark("load-brokers", batch)])
    rows = lake.table("progress")
    assert len(rows.inputFiles()) <= 2 * EVERY, "a file for each batch since, and one for all before, of each stage"
    silver, gold = mark("load-brokers", BATCHES - 1), mark("load-brokers", BATCHES // 2 - 1)
    offsets = {("load-brokers", 0): silver.next_offset, ("decisions", 0): 3}
    assert stages(lake) == {
        SILVER: Reached(BATCHES - 1, offsets, silver.until_us),
        GOLD: Reached(BATCHES // 2 - 1, {("load-brokers", 0): gold.next_offset}, gold.until_us),
    }
    counted = rows.where(f"stage = '{SILVER}'").groupBy("topic").sum("rows").collect()
    assert {row[0]: row[1] for row in counted} == {"load-brokers": 3 * BATCHES, "decisions": 3}
    by_day = rows.where(f"stage = '{SILVER}' AND topic = 'load-brokers'").selectExpr("date(until) AS day", "batch")
    last = {str(row[0]): row[1] for row in by_day.groupBy("day").max("batch").collect()}
    assert last == {"1970-01-01": 9, "1970-01-02": 19, "1970-01-03": 21}, "what the states of a day are found by"
