"""Cuts silver into windows with everything that each needs to be replayed by itself.

A window gets its own rows, the reports that are still in force when it begins, the owners at its begin, moves before
it, and the policies that held. DataFrames in, one DataFrame out; nothing runs here.

A row goes to its own window, and a report also to the next windows that begin within its time to live. All kinds of
rows share one table of the same columns, so that one shuffle brings a window's rows together, once for all its
candidates.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as f

from loadmanager.decisions.log import DECISIONS_TOPIC
from loadmanager.history.lake import Lake
from loadmanager.history.minutes import Reach, in_force
from loadmanager.history.replay.slices import LISTED, OWNERSHIP, REPORT, RULES, TOTAL, Frame
from loadmanager.history.texts import on_spark

EVENT = {
    "kind": "tinyint",
    "us": "bigint",
    "until_us": "bigint",
    "nth": "bigint",
    "ordinal": "int",
    "broker": "string",
    "bundle": "string",
    "gone": "boolean",
    "source": "string",
    "action": "string",
    "role": "string",
    "cpu_percent": "double",
    "memory_percent": "double",
    "in_rate_bytes_s": "double",
    "out_rate_bytes_s": "double",
    "rate_msg_s": "double",
    "cores": "double",
    "memory_bytes": "double",
    "in_capacity_bytes_s": "double",
    "out_capacity_bytes_s": "double",
    "capacity_msg_s": "double",
    "data": "binary",
}
"""Columns of a row, beside its `slot` = window · lanes + lane."""
_DECLARED = {
    "cores": "cpu",
    "memory_bytes": "memory_bytes",
    "in_capacity_bytes_s": "in_rate_bytes_s",
    "out_capacity_bytes_s": "out_rate_bytes_s",
    "capacity_msg_s": "rate_msg_s",
}
"""Capacity columns, and the names under which brokers declare them (`load.usage.CAPACITIES`)."""
SLACK = timedelta(hours=1)
"""A decision reaches the log a little after it was made, by other clocks."""
_TO = ("transferring", "releasing")
_NOBODY = ("unassigned", "revoking")


class Cut(msgspec.Struct, frozen=True):
    """Consecutive windows of equal length, and how many lanes share the candidates of each."""

    begin_us: int
    width_us: int
    windows: int
    interval_us: int
    ttl_us: int
    lanes: int = 1
    memory_us: int = 0
    """How long before a window transitions still matter to it: bundles rest, and dead brokers stay dead."""

    @property
    def end_us(self) -> int:
        """Where the last one ends."""
        return self.begin_us + self.width_us * self.windows

    def frame(self, window: int) -> Frame:
        """The rounds of a window."""
        return Frame(self.begin_us + window * self.width_us, self.interval_us, self.width_us // self.interval_us)


def moment(us: int) -> datetime:
    """Microseconds as a time, UTC."""
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=us)


def events(lake: Lake, cut: Cut) -> DataFrame:
    """`slot` and the columns of EVENT: everything that each window needs."""
    rows = _reports(lake, cut).unionByName(_totals(lake, cut)).unionByName(_listed(lake, cut))
    rows = rows.unionByName(_ownerships(lake, cut)).unionByName(_rules(lake, cut))
    lane = f.explode(f.array(*[f.lit(each) for each in range(cut.lanes)])) if cut.lanes > 1 else f.lit(0)
    return rows.withColumn("lane", lane).select(
        (f.col("window") * cut.lanes + f.col("lane")).cast("int").alias("slot"), *EVENT
    )


def _as_events(rows: DataFrame, kind: int) -> DataFrame:
    """With all columns of EVENT, null where these rows have none, and `window`."""
    columns = [
        (f.col(name) if name in rows.columns else f.lit(None)).cast(type_).alias(name)
        for name, type_ in EVENT.items()
        if name != "kind"
    ]
    return rows.select("window", f.lit(kind).cast("tinyint").alias("kind"), *columns)


def _window_of(us: Column, cut: Cut) -> Column:
    return f.floor((us - f.lit(cut.begin_us)) / f.lit(cut.width_us)).cast("int")


def _in_windows(rows: DataFrame, first: Column, last: Column) -> DataFrame:
    """Each row once for every window from `first` to `last`."""
    return rows.where(last >= first).withColumn("window", f.explode(f.sequence(first, last)))


def _reported(lake: Lake, table: str, cut: Cut) -> DataFrame:
    """Rows of reports with `us`, for each window in which they may be in force."""
    first, last = (moment(us).date() for us in (cut.begin_us - cut.ttl_us, cut.end_us))
    rows = lake.table(table).where(f.col("day").isNull() | f.col("day").between(f.lit(first), f.lit(last)))
    us = f.unix_micros(f.coalesce("at", "appended_at"))
    rows = rows.withColumn("us", us).where(f.col("us").between(cut.begin_us - cut.ttl_us, cut.end_us - 1))
    own, still = _window_of(f.col("us"), cut), _window_of(f.col("us") + f.lit(cut.ttl_us), cut)
    return _in_windows(
        rows.withColumn("nth", f.col("offset")),
        f.greatest(own, f.lit(0)),
        f.least(f.greatest(still, own), f.lit(cut.windows - 1)),
    )


def _message_rate() -> Column:
    return f.coalesce("in_rate_msg_s", f.lit(0.0)) + f.coalesce("out_rate_msg_s", f.lit(0.0))


def _reports(lake: Lake, cut: Cut) -> DataFrame:
    """The reports in force, with `until_us`."""
    first = moment(cut.begin_us - 2 * cut.ttl_us)
    before = f.coalesce("at", "appended_at").between(f.lit(first), f.lit(moment(cut.end_us)))
    near = f.col("appended_at").between(f.lit(first), f.lit(moment(cut.end_us)))
    reports, changes = lake.table("broker_load").where(before), lake.table("transition").where(near)
    times = on_spark(in_force(Reach(cut.ttl_us)), {"report": reports, "transition": changes})
    times = times.select("partition", "offset", f.col("end_us").alias("until_us"))
    rows = _reported(lake, "broker_load", cut).join(times, ["partition", "offset"]).where("until_us > us")
    rows = rows.withColumn("rate_msg_s", _message_rate())
    for name, declared in _DECLARED.items():
        rows = rows.withColumn(name, f.element_at("capacity", f.lit(declared)))
    return _as_events(rows, REPORT)


def _totals(lake: Lake, cut: Cut) -> DataFrame:
    return _as_events(_reported(lake, "bundle_total", cut).withColumn("rate_msg_s", _message_rate()), TOTAL)


def _listed(lake: Lake, cut: Cut) -> DataFrame:
    return _as_events(_reported(lake, "bundle_load", cut).withColumn("rate_msg_s", _message_rate()), LISTED)


def _ownerships(lake: Lake, cut: Cut) -> DataFrame:
    """Transitions, each for its own window and for later ones in which it still matters.

    The last one before a window is always included, if the bundle existed then. A bundle's transitions are in the order
    of the log; one whose author's clock was behind gets the time of the one before.
    """
    history = Over.partitionBy("bundle").orderBy("partition", "offset", "ordinal")
    so_far = history.rowsBetween(Over.unboundedPreceding, Over.currentRow)
    rows = lake.table("transition").where(f.col("at") < f.lit(moment(cut.end_us)))
    rows = rows.withColumn("us", f.max(f.unix_micros("at")).over(so_far)).where(f.col("us") < cut.end_us)
    rows = rows.withColumn("next_us", f.lead("us").over(history))
    own = _window_of(f.col("us"), cut)
    still = f.greatest(own, _window_of(f.col("us") + f.lit(cut.memory_us), cut))
    until = f.coalesce(_window_of(f.col("next_us"), cut), f.lit(cut.windows - 1))
    last = f.when(f.col("state").isNull(), still).otherwise(f.greatest(still, until))
    last = f.least(last, f.lit(cut.windows - 1))
    return _as_events(_in_windows(_places(rows), f.greatest(own, f.lit(0)), last), OWNERSHIP)


def _rules(lake: Lake, cut: Cut) -> DataFrame:
    """The record of each window's first decision with a model: it contains the policies in force.

    Records are read from bronze, which is kept for a shorter time than silver: beyond that there are none.
    """
    first, last = moment(cut.begin_us), moment(cut.end_us)
    made = lake.table("decision").where(
        f.col("has_model") & (f.col("at") >= f.lit(first)) & (f.col("at") < f.lit(last))
    )
    us = f.unix_micros("at")
    firsts = made.groupBy(_window_of(us, cut).alias("window")).agg(
        f.min(f.struct(us.alias("us"), "partition", "offset", "appended_at")).alias("first")
    )
    firsts = firsts.select("window", "first.*")
    held = lake.table("bronze").where(f.col("topic") == DECISIONS_TOPIC)
    held = held.where(f.col("appended_at").between(f.lit(first - SLACK), f.lit(last + SLACK)))
    held = held.select("partition", "offset", f.col("value").alias("data"))
    rows = held.join(f.broadcast(firsts), ["partition", "offset"]).withColumn("nth", f.col("offset"))
    return _as_events(rows, RULES)


def _places(rows: DataFrame) -> DataFrame:
    """Adds where the bundle is, or is about to be, as strategies see it."""
    state = f.col("state")
    broker = f.when(state.isin(*_TO), f.col("target")).when(~state.isin(*_NOBODY), f.col("holder"))
    return rows.select(
        "us", "next_us", "ordinal", "bundle", "state", "action", "role",
        f.col("offset").alias("nth"),
        state.isNull().alias("gone"),
        f.col("holder_before").alias("source"),
        broker.alias("broker"),
    )  # fmt: skip
