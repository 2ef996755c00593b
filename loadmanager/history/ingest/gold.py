"""Keeps the gold tables up to date: recomputes whole minutes that new rows of silver change.

A minute's rows are a function of the reports and the changes of owner since two times to live before it. So they can be
computed at any time and any number of times, and the next run repairs what a killed one left. Gold's position is in
`progress` under the table's name, and is written last. A new report, deletion or `revoke` changes the minutes from its
time to two times to live after it: it decides which reports of the first count, and these reach into the second. A new
holder changes a bundle's minutes until the bundle's next change. The horizon is the time up to which all is known. When
it moves, the minutes between its old and new place change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from loadmanager.diagnostics.topics import CHANNEL_TOPIC
from loadmanager.history import utc
from loadmanager.history.ingest.failpoints import NEVER, Failpoints
from loadmanager.history.ingest.positions import SILVER, Mark, Reached, advance, stages
from loadmanager.history.lake import Lake
from loadmanager.history.minutes import (
    ENDLESS_US,
    MINUTE_US,
    Reach,
    Span,
    broker_minutes,
    bundle_minutes,
    in_force,
    named,
)
from loadmanager.history.texts import on_spark
from loadmanager.history.utc import AHEAD_US
from loadmanager.model.load import BROKERS_TOPIC, BUNDLES_TOPIC
from statechannel.law.record import Action

HOUR_US = 60 * MINUTE_US
SPANS = 200
"""With more spans than this, one span covers them all: a condition of thousands of parts takes longer than the minutes
between."""

_TOPICS = {"broker_load": BROKERS_TOPIC, "bundle_total": BUNDLES_TOPIC, "transition": CHANNEL_TOPIC}
_TIMES = dict.fromkeys(_TOPICS, ("at", "appended_at")) | {"transition": ("appended_at",)}
"""When rows take effect: the first of these that is known."""


class Gold(msgspec.Struct, frozen=True):
    """A gold table: the silver table whose rows are its reports, and how minutes are made."""

    table: str
    reports: str
    make: Callable[[Lake, Reach, list[Span]], DataFrame]


def refresh_gold(
    lake: Lake, load_ttl_s: float, *, everything: bool = False, failpoints: Failpoints = NEVER
) -> dict[str, int]:
    """Bring gold up to what silver is complete to; returns, per table, how many minutes were recomputed.

    `load_ttl_s` is twice the brokers' `load_report_max_interval_s`. `everything` recomputes all minutes: use it after
    that setting has changed.
    """
    known = stages(lake)
    ttl_us = round(load_ttl_s * 1_000_000)
    return {gold.table: _refresh(lake, gold, known, ttl_us, everything, failpoints) for gold in GOLD}


def _refresh(
    lake: Lake, gold: Gold, known: Mapping[str, Reached], ttl_us: int, everything: bool, failpoints: Failpoints
) -> int:
    silver, there = (known.get(stage, Reached()) for stage in (SILVER, gold.table))
    before = Reached(batch=there.batch) if everything else there
    if before.next_offsets == silver.next_offsets:
        return 0
    hours = _changed(lake, gold.reports, before)
    horizon_us = max([last for _, last in hours] + ([] if before.until_us is None else [before.until_us]), default=None)
    hours += _changed(lake, "transition", before, f.col("action") == str(Action.REVOKE))
    if gold.reports != "broker_load":
        hours += _changed(lake, "broker_load", before, f.col("at").isNull())
    held = _held(lake, before) if gold.table == "bundle_minute" else []
    if not (hours or held) or horizon_us is None:
        return 0
    spans = affected(hours, ttl_us, horizon_us if before.until_us is None else before.until_us, horizon_us, held)
    rows = gold.make(lake, Reach(ttl_us, horizon_us), spans)
    lake.replace(gold.table, rows, "true" if everything else " OR ".join(map(_sql, spans)))
    failpoints.reached("gold")
    marks = [Mark(*key, offset, 0, horizon_us) for key, offset in silver.next_offsets.items()]
    advance(lake, gold.table, before.batch + 1, marks)
    return sum((span.end - span.begin) // MINUTE_US for span in spans)


def affected(
    hours: Iterable[tuple[int, int]],
    ttl_us: int,
    horizon_before: int,
    horizon: int,
    held: Iterable[tuple[int, int]] = (),
) -> list[Span]:
    """The minutes that change, as disjoint spans.

    `hours`: first and last time of the new reports, deletions and revokes, hour by hour. `held`: from when to when
    bundles have other holders. All in microseconds.
    """
    changed = [(first, last + 2 * ttl_us) for first, last in hours] + [*held, (horizon_before, horizon)]
    cut = [(first, min(last, horizon)) for first, last in changed]
    spans: list[Span] = []
    for span in sorted(Span(_floor(first), _floor(last) + MINUTE_US) for first, last in cut if last >= first):
        if spans and span.begin <= spans[-1].end:
            spans[-1] = Span(spans[-1].begin, max(spans[-1].end, span.end))
        else:
            spans.append(span)
    return spans if len(spans) <= SPANS else [Span(spans[0].begin, spans[-1].end)]


def _changed(lake: Lake, table: str, before: Reached, which: Column | None = None) -> list[tuple[int, int]]:
    """First and last time of the rows that silver has and gold lacks, one pair per hour."""
    rows = _new(lake, table, before)
    rows = rows if which is None else rows.where(which)
    time = rows.select(f.unix_micros(f.coalesce(*_TIMES[table])).alias("us"))
    return _hours(time, "us", "us")


def _held(lake: Lake, before: Reached) -> list[tuple[int, int]]:
    """From when to when the holders that silver has and gold lacks hold, one pair per hour of their begin.

    A bundle's changes come in their order, so its next change is among the new ones, too.
    """
    changes = on_spark(named(), {"transition": _new(lake, "transition", before)})
    return _hours(changes.withColumn("until_us", f.coalesce("until_us", f.lit(ENDLESS_US))), "since_us", "until_us")


def _new(lake: Lake, table: str, before: Reached) -> DataFrame:
    """The rows that silver has and gold lacks."""
    return lake.table(table).withColumn("topic", f.lit(_TOPICS[table])).where(~before.is_below())


def _hours(times: DataFrame, first: str, last: str) -> list[tuple[int, int]]:
    hours = times.groupBy(f.floor(f.col(first) / HOUR_US)).agg(f.min(first), f.max(last))
    return [(row[1], row[2]) for row in hours.collect()]


def deciding(spans: Sequence[Span], ttl_us: int) -> tuple[list[Span], Span]:
    """The times of the reports, and of the changes of holders, that decide about the spans (`in_force.sql`).

    The changes have no gaps: a bundle may change hands between two spans.
    """
    reports = [Span(span.begin - 2 * ttl_us, span.end) for span in spans]
    return reports, Span(reports[0].begin, reports[-1].end)


def _near(spans: Sequence[Span], ttl_us: int) -> Column:
    """Whether reports decide about a span. Also by day, so that Spark skips whole folders."""
    wider, whole = deciding(spans, ttl_us)
    days = f.col("day").between(f.lit(utc.time_of(whole.begin).date()), f.lit(utc.time_of(whole.end).date()))
    at, appended = (_within(f.col(name), wider) for name in ("at", "appended_at"))
    return days & (at | (f.col("at").isNull() & appended))


def _within(time: Column, spans: list[Span]) -> Column:
    """`minutes.within` of a timestamp, in a form that lets Spark skip files."""
    inside = f.lit(False)
    for span in spans:
        inside = inside | ((time >= f.lit(utc.time_of(span.begin))) & (time < f.lit(utc.time_of(span.end))))
    return inside


def _brokers(lake: Lake, reach: Reach, spans: list[Span]) -> DataFrame:
    reports = lake.table("broker_load").where(_near(spans, reach.ttl_us))
    return on_spark(
        broker_minutes(spans),
        {"in_force": reports_in_force(reports, _changes(lake, reach, spans), reach), "broker_load": reports},
    )


def _bundles(lake: Lake, reach: Reach, spans: list[Span]) -> DataFrame:
    near, changes = _near(spans, reach.ttl_us), _changes(lake, reach, spans)
    totals, bundles = (lake.table(name).where(near) for name in ("bundle_total", "bundle_load"))
    deletions = lake.table("broker_load").where(near & f.col("at").isNull())
    columns = ("partition", "offset", "appended_at", "broker", "incarnation", "at")
    reports = totals.select(*columns).unionByName(deletions.select(*columns))
    steps = reports_in_force(reports, changes, reach)
    return on_spark(bundle_minutes(spans), {"in_force": steps, "bundle_load": bundles, "transition": changes})


def reports_in_force(reports: DataFrame, changes: DataFrame, reach: Reach) -> DataFrame:
    """`minutes.in_force` of these reports and transitions."""
    return on_spark(in_force(reach), {"report": reports, "transition": changes})


def _changes(lake: Lake, reach: Reach, spans: list[Span]) -> DataFrame:
    """The transitions that decide about the spans; their day is of the writer's clock, a day from the log's at most."""
    _, whole = deciding(spans, reach.ttl_us)
    first, last = (f.lit(utc.time_of(us).date()) for us in (whole.begin - AHEAD_US, whole.end + AHEAD_US))
    return lake.table("transition").where(f.col("day").between(first, last) & _within(f.col("appended_at"), [whole]))


GOLD = (Gold("broker_minute", "broker_load", _brokers), Gold("bundle_minute", "bundle_total", _bundles))


def _sql(span: Span) -> str:
    begin, last = utc.time_of(span.begin), utc.time_of(span.end - 1)
    return (
        f"(day >= DATE'{begin:%Y-%m-%d}' AND day <= DATE'{last:%Y-%m-%d}' AND "
        f"minute >= {utc.timestamp(span.begin)} AND minute < {utc.timestamp(span.end)})"
    )


def _floor(us: int) -> int:
    return us - us % MINUTE_US
