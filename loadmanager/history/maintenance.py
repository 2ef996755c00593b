"""Keeps a lake small and fast: joins small files, removes old rows, deletes files that nothing needs.

It may run at any time, beside a running ingest.

* Joining changes no row, and appends go on meanwhile. A day is joined when it has many files: the present one again and
again, an earlier one again when something came late.
* Old rows are those of a day before the retention. Their offsets stay in `progress`: what the topics still have of them
is not ingested again. Gold stays. So does the replay's state, which needs no bronze (the ingest keeps one older state a
day, for as long as `progress` knows the day). Two kinds of old rows stay in bronze. The first are records of the
channel that wait for a newer release, with everything after them in their partition. The second are those of an
incomplete batch, because silver is being made from them.
* Files that no version of the last `history_days` names are deleted. A run never needs older ones: it reads the newest
version, and what it writes is younger.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loadmanager.diagnostics.topics import CHANNEL_TOPIC
from loadmanager.errors import Invalid
from loadmanager.history import layout, verdicts
from loadmanager.history.ingest.positions import SILVER, reached
from loadmanager.history.lake import Lake
from loadmanager.history.schemas import TABLES

FILES_A_DAY = 4
FILES_TODAY = 50
"""A day with fewer files than this is left as it is."""

SHORTEST_HISTORY_DAYS = 1
OWN_TABLES = ("progress", "channel_state")
GOLD_TABLES = ("broker_minute", "bundle_minute")
_UNCHECKED = "spark.databricks.delta.retentionDurationCheck.enabled"


class Retention(msgspec.Struct, frozen=True):
    """How many days rows are kept, by their `day`, and files of older versions, for time travel."""

    bronze_days: int = 30
    silver_days: int = 365
    history_days: int = 7


class Maintained(msgspec.Struct, frozen=True):
    """What was done to a table."""

    table: str
    days_joined: int
    rows_removed: int


def maintain(
    lake: Lake,
    now: datetime,
    retention: Retention = Retention(),  # noqa: B008 - frozen
    *,
    dry_run: bool = False,
) -> list[Maintained]:
    """Maintain every table that exists; a dry run only tells what would be done. Raises Invalid for a retention that
    makes no sense.
    """
    if retention.history_days < SHORTEST_HISTORY_DAYS or min(retention.bronze_days, retention.silver_days) < 1:
        raise Invalid(
            f"{retention} keeps less than a day, so data could vanish while a job reads it: keep a day or more"
        )
    done: list[Maintained] = []
    for table in TABLES:
        if lake.exists(table):
            old = _old_rows(lake, table, now, retention)
            removed = 0 if old is None else lake.table(table).where(old).count()
            if removed and old is not None and not dry_run:
                lake.remove(table, old)
            joined = _days_of_many_files(lake, table, now.date())
            if not dry_run:
                _join_files(lake, table, joined)
                _vacuum(lake, table, retention.history_days)
            done.append(Maintained(table, len(joined), removed))
    return done


def _old_rows(lake: Lake, table: str, now: datetime, retention: Retention) -> str | None:
    """An SQL condition for the rows to remove; None: there are none."""
    if table == "progress":
        return _superseded(lake, now, retention.bronze_days)
    if table in GOLD_TABLES or table in OWN_TABLES:
        return None
    days = retention.bronze_days if table in ("bronze", "quarantine") else retention.silver_days
    where = f"day < DATE'{now.date() - timedelta(days=days):%Y-%m-%d}'"
    if table in ("bronze", "quarantine"):
        where += _but_waiting(lake)
    if table == "bronze":
        where += f" AND batch <= {reached(lake, SILVER).batch}"
    return where


def _but_waiting(lake: Lake) -> str:
    """An SQL condition that spares what the replay still has to read."""
    held = {
        n: at.next_offset for n, at in verdicts.positions(lake.table("channel_state")).items() if at.held is not None
    }
    return "".join(
        f" AND NOT (topic = '{CHANNEL_TOPIC}' AND partition = {number} AND offset >= {offset})"
        for number, offset in held.items()
    )


def _superseded(lake: Lake, now: datetime, days: int) -> str | None:
    """Old rows of `progress` except the last of each stage and partition; only their figures are lost."""
    last = f.max("batch").alias("batch")
    latest = lake.table("progress").groupBy("stage", "topic", "partition").agg(last).collect()
    if not latest:
        return None
    needed = " OR ".join(
        f"(stage = '{row['stage']}' AND topic = '{row['topic']}' AND partition = {row['partition']} "
        f"AND batch = {row['batch']})"
        for row in latest
    )
    return f"until < TIMESTAMP'{now.date() - timedelta(days=days):%Y-%m-%d} 00:00:00 UTC' AND NOT ({needed})"


def _days_of_many_files(lake: Lake, table: str, today: date) -> list[date | None]:
    """The days whose files are to be joined; a table without days has the one day None."""
    if "day" not in TABLES[table].names:
        return [None]
    return [row["day"] for row in _files(lake, table).collect() if row["count"] >= _enough(row["day"], today)]


def _join_files(lake: Lake, table: str, days: list[date | None]) -> None:
    for day in days:
        where = "" if day is None else f" WHERE day = DATE'{day:%Y-%m-%d}'"
        lake.spark.sql(f"OPTIMIZE {layout.delta(lake.path(table))}{where}")


def _enough(day: date, today: date) -> int:
    return FILES_TODAY if day >= today else FILES_A_DAY


def _files(lake: Lake, table: str) -> DataFrame:
    """How many files each day has: one row a day."""
    names = lake.table(table).select("day", f.input_file_name().alias("file")).distinct()
    return names.where(f.col("day").isNotNull()).groupBy("day").count().orderBy("day")


def _vacuum(lake: Lake, table: str, days: int) -> None:
    conf = lake.spark.conf
    before = conf.get(_UNCHECKED, "true")
    conf.set(_UNCHECKED, "false")
    try:
        lake.spark.sql(f"VACUUM {layout.delta(lake.path(table))} RETAIN {days * 24} HOURS")
    finally:
        conf.set(_UNCHECKED, before or "true")
