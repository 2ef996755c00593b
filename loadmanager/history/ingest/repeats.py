"""Finds records of a batch that repeat a report of another record.

A report that is in the log twice (its writer did not learn that the first was taken) counts once, at its first offset.
Its identity is whose it is and when it was measured.

The lake is read only for the time span in which the batch's reports were measured. A row of the lake at a record's own
offset is that record itself. So a batch that is run again repeats nothing, whichever of its tables were written before
it was cut off.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (pyarrow ships no types)
from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as f

from loadmanager.decisions.log import DECISIONS_TOPIC
from loadmanager.history import utc
from loadmanager.history.lake import Lake
from loadmanager.model.load import BROKERS_TOPIC, BUNDLES_TOPIC

PLACE = ("topic", "partition", "offset")
IDENTITY = ("topic", "who", "incarnation", "at")
Reports = Any
"""A `pyarrow.Table` of REPORTS: pyarrow says nothing about its types."""


class Head(msgspec.Struct, frozen=True):
    """The table with one row per record of a topic, and the identity of its reports.

    `who` and `incarnation` are columns (an empty `incarnation` stands for 0); the time is `at`. `column` is the topic's
    in `records.DECODED`.
    """

    topic: str
    table: str
    column: str
    who: str
    incarnation: str = ""

    def identified(self, rows: DataFrame) -> DataFrame:
        """PLACE and IDENTITY of rows of the table."""
        return rows.where(f.col("at").isNotNull()).select(
            f.lit(self.topic).alias("topic"),
            "partition",
            "offset",
            f.col(self.who).alias("who"),
            (f.col(self.incarnation) if self.incarnation else f.lit(0)).cast("long").alias("incarnation"),
            "at",
        )


HEADS = (
    Head(BROKERS_TOPIC, "broker_load", "broker_load", "broker", "incarnation"),
    Head(BUNDLES_TOPIC, "bundle_total", "top_bundles", "broker", "incarnation"),
    Head(DECISIONS_TOPIC, "decision", "decision", "id"),
)
KEPT = 2
"""Batches of which a run keeps the reports: brokers' clocks and reports are seconds apart, and so are batches."""

REPORTS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("who", pa.string()),
        ("incarnation", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
"""PLACE and IDENTITY of a batch's reports, which the driver holds: some 60 bytes each."""

Bounds = tuple[int, int]
"""First and last, microseconds since 1970."""


class Recent:
    """The reports of a run's last batches, so that most batches need not ask the lake.

    A batch's own reports join when they are examined. `remembered` says whether a batch's spans lie after everything
    that is not here: after what the lake had before the run, and after batches that were dropped (see KEPT).
    """

    def __init__(self) -> None:
        self._kept: deque[tuple[Reports, Mapping[str, Bounds]]] = deque()
        self._older: dict[str, int] = {}

    def learn(self, lake: Lake, spans: Mapping[str, Bounds]) -> None:
        """Ask the lake how far it goes, for topics that come for the first time."""
        for head in HEADS:
            if head.topic in spans and head.topic not in self._older:
                begin_us = spans[head.topic][0]
                last = _measured(lake, head, begin_us).agg(f.unix_micros(f.max("at"))).collect()[0][0]
                self._older[head.topic] = begin_us - 1 if last is None else last

    def remembered(self, spans: Mapping[str, Bounds]) -> bool:
        """Whether all reports of these spans that the lake has are here."""
        return all(begin_us > self._older[topic] for topic, (begin_us, _) in spans.items())

    @property
    def kept(self) -> list[Reports]:
        """The batches that are remembered."""
        return [reports for reports, _ in self._kept]

    def join(self, reports: Reports, spans: Mapping[str, Bounds]) -> None:
        """Add a batch's reports, and drop the oldest batch."""
        self._kept.append((reports, spans))
        if len(self._kept) > KEPT:
            _, oldest = self._kept.popleft()
            for topic, (_, last_us) in oldest.items():
                self._older[topic] = max(last_us, self._older[topic])


def repeats(lake: Lake, reports: Reports, recent: Recent | None = None) -> DataFrame | None:
    """PLACE of the records to leave out; None where there are none. Deletions never are left out.

    The result is computed once, before any table is written, and does not change with the tables. Give `recent` if the
    batch is one of a run, and comes once.
    """
    spans = _spans(reports)
    if not spans:
        return None
    if recent is not None:
        recent.learn(lake, spans)
        new = recent.remembered(spans) and _differ([reports, *recent.kept])
        recent.join(reports, spans)
        if new:
            return None
    order = Over.partitionBy(*IDENTITY).orderBy("partition", "offset")
    ranked = lake.spark.createDataFrame(reports).withColumn("rank", f.row_number().over(order))
    known = _recorded(lake, spans).select(*IDENTITY, f.struct("partition", "offset").alias("known"))
    elsewhere = f.col("known").isNotNull() & (f.col("known") != f.struct("partition", "offset"))
    again = ranked.join(known, list(IDENTITY), "left").where((f.col("rank") > 1) | elsewhere).select(*PLACE)
    found = again.toArrow()  # to the driver, as the reports: an executor that dies would take a local checkpoint along
    return lake.spark.createDataFrame(found) if found.num_rows else None


def _spans(reports: Reports) -> dict[str, Bounds]:
    """Of each topic, from when to when its reports were measured, both included."""
    times = reports.select(["topic"]).append_column("us", reports["at"].cast(pa.int64()))
    found = times.group_by("topic").aggregate([("us", "min"), ("us", "max")]).to_pylist()
    return {each["topic"]: (each["us_min"], each["us_max"]) for each in found}


def _differ(batches: Sequence[Reports]) -> bool:
    """Whether no two of the reports are the same."""
    together = pa.concat_tables(batches)
    return together.group_by(list(IDENTITY)).aggregate([]).num_rows == together.num_rows


def reports_of(decoded: DataFrame) -> Reports:
    """The reports among decoded records: such a record has one of the columns of HEADS."""
    who = f.coalesce(*(f.col(f"{head.column}.{head.who}") for head in HEADS))
    known = [f.col(f"{head.column}.{head.incarnation}") for head in HEADS if head.incarnation]
    at = f.coalesce(*(f.col(f"{head.column}.at") for head in HEADS))
    incarnation = f.coalesce(*known, f.lit(0)).cast("long")
    rows = decoded.select(*PLACE, who.alias("who"), incarnation.alias("incarnation"), at.alias("at"))
    return rows.where(f.col("at").isNotNull()).toArrow().cast(REPORTS)


def reports_in(table: str, columns: Mapping[str, Any]) -> Reports | None:
    """The reports among rows of a table, as Arrow columns; None if the table is not one of HEADS."""
    head = next((head for head in HEADS if head.table == table), None)
    if head is None:
        return None
    at = columns["at"]
    incarnation = columns[head.incarnation] if head.incarnation else pa.repeat(pa.scalar(0, pa.int64()), len(at))
    topic = pa.repeat(head.topic, len(at))
    values = (topic, columns["partition"], columns["offset"], columns[head.who], incarnation, at)
    return pa.table(list(values), names=REPORTS.names).filter(at.is_valid()).cast(REPORTS)


def _recorded(lake: Lake, spans: Mapping[str, Bounds]) -> DataFrame:
    """The reports of these spans that the lake has."""
    parts = [head.identified(_measured(lake, head, *spans[head.topic])) for head in HEADS if head.topic in spans]
    return reduce(DataFrame.union, parts)


def _measured(lake: Lake, head: Head, begin_us: int, end_us: int | None = None) -> DataFrame:
    """What the lake has from `begin_us` to `end_us`, both included."""
    begin = utc.time_of(begin_us)
    rows = lake.table(head.table).where((f.col("at") >= f.lit(begin)) & (f.col("day") >= f.lit(begin.date())))
    if end_us is None:
        return rows
    end = utc.time_of(end_us)
    return rows.where((f.col("at") <= f.lit(end)) & (f.col("day") <= f.lit(end.date())))
