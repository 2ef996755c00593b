"""Which records of a batch repeat a report that another record holds. A report that stands in the log twice (its writer
did not learn that the first was taken) counts once, as of its first offset: whose it is and when it was measured is its
identity.

The lake is asked only for the span of time in which the batch's reports were measured. A row of the lake that stands at
a record's own offset is that record itself: a batch that is run again repeats nothing, whichever of its tables were
written before it was cut off.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as f

from loadmanager.decisions.log import DECISIONS_TOPIC
from loadmanager.history.lake import Lake
from loadmanager.load.model import BROKERS_TOPIC, BUNDLES_TOPIC

PLACE = ("topic", "partition", "offset")
IDENTITY = ("topic", "who", "incarnation", "at")


class Head(msgspec.Struct, frozen=True):
    """The table with one row a record of a topic, and what makes two records the same report: `who` of which
    `incarnation` (a column, or "0") at which time. `column` is the topic's in `decoding.DECODED`."""

    topic: str
    table: str
    column: str
    who: str
    incarnation: str

    def identified(self, rows: DataFrame, prefix: str = "") -> DataFrame:
        """PLACE and IDENTITY of rows of the table; with a prefix of rows that have its columns in a struct."""
        known = rows.where(f.col(f"{prefix}at").isNotNull())
        return known.select(
            f.lit(self.topic).alias("topic"),
            "partition",
            "offset",
            f.col(prefix + self.who).alias("who"),
            f.expr(self.incarnation if self.incarnation == "0" else prefix + self.incarnation)
            .cast("long")
            .alias("incarnation"),
            f.col(f"{prefix}at").alias("at"),
        )


HEADS = (
    Head(BROKERS_TOPIC, "broker_load", "broker_load", "broker", "incarnation"),
    Head(BUNDLES_TOPIC, "bundle_total", "top_bundles", "broker", "incarnation"),
    Head(DECISIONS_TOPIC, "decision", "decision", "id", "0"),
)


def repeats(lake: Lake, decoded: DataFrame, spans: Mapping[str, tuple[int, int]]) -> DataFrame | None:
    """PLACE of the records that are to be left out; None where there are none. Deletions never are.

    `spans`: of each topic, from when to when its reports were measured (microseconds, both included). It is found out
    once, before any table is written, and does not follow what the tables get then.
    """
    heads = [head for head in HEADS if head.topic in spans]
    if not heads:
        return None
    reports = reduce(DataFrame.union, [head.identified(decoded, f"{head.column}.") for head in heads])
    there = reduce(DataFrame.union, [_measured(lake, head, *spans[head.topic]) for head in heads])
    order = Over.partitionBy(*IDENTITY).orderBy("partition", "offset")
    ranked = reports.withColumn("rank", f.row_number().over(order))
    known = there.select(*IDENTITY, f.struct("partition", "offset").alias("known"))
    elsewhere = f.col("known").isNotNull() & (f.col("known") != f.struct("partition", "offset"))
    again = ranked.join(known, list(IDENTITY), "left").where((f.col("rank") > 1) | elsewhere).select(*PLACE)
    found = again.localCheckpoint()  # `persist` would be computed anew whenever one of these tables is written
    return None if found.isEmpty() else found


def _measured(lake: Lake, head: Head, begin_us: int, end_us: int) -> DataFrame:
    """What the lake has from `begin_us` to `end_us`, both included."""
    begin, end = (f.timestamp_micros(f.lit(time)) for time in (begin_us, end_us))
    rows = lake.table(head.table).where(f.col("at").between(begin, end))
    return head.identified(rows.where(f.col("day").between(f.to_date(begin), f.to_date(end))))
