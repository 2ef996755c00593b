"""Keeps the gold tables up to date: recomputes whole minutes that new rows of silver change.

A minute's rows are a function of the reports since one time to live before it, so they can be computed at any time and
any number of times; the next run repairs what a killed one left. Gold's position is in `progress` under the table's
name, and is written last. A new report changes the minutes from its time to one time to live after it; when the
horizon, up to which all is known, moves, the minutes between its old and new place change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from loadmanager.history import utc
from loadmanager.history.ingest.failpoints import NEVER, Failpoints
from loadmanager.history.ingest.minutes import MINUTE_US, Reach, Span, broker_minutes, bundle_minutes
from loadmanager.history.ingest.progress import SILVER, Mark, Reached, advance, stages
from loadmanager.history.lake import Lake
from loadmanager.history.plausible import AHEAD_US, is_plausible
from loadmanager.model.load import BROKERS_TOPIC, BUNDLES_TOPIC

HOUR_US = 60 * MINUTE_US
SPANS = 200
"""With more spans than this, one span covers them all: a condition of thousands of parts takes longer than the minutes
between."""

_TOPICS = {"broker_load": BROKERS_TOPIC, "bundle_total": BUNDLES_TOPIC}


class Gold(msgspec.Struct, frozen=True):
    """A gold table: the silver table whose rows are its reports, and how minutes are made."""

    table: str
    reports: str
    make: Callable[[Lake, Reach, list[Span]], DataFrame]


def refresh_gold(
    lake: Lake, load_ttl_s: float, *, everything: bool = False, failpoints: Failpoints = NEVER
) -> dict[str, int]:
    """Bring gold up to what silver is complete to; returns, per table, how many minutes were recomputed.

    `load_ttl_s` is the brokers' setting. `everything` recomputes all minutes: use it after that setting has changed.
    """
    known = stages(lake)
    ttl_us = round(load_ttl_s * 1_000_000)
    return {gold.table: _refresh(lake, gold, known, ttl_us, everything, failpoints) for gold in GOLD}


def _refresh(
    lake: Lake, gold: Gold, known: Mapping[str, Reached], ttl_us: int, everything: bool, failpoints: Failpoints
) -> int:
    silver, there = (known.get(stage, Reached()) for stage in (SILVER, gold.table))
    before = Reached(batch=there.batch) if everything else _within_time(lake, gold, there, silver)
    if before.next_offsets == silver.next_offsets:
        return 0
    hours = _changed(lake, gold, before)
    if not hours:
        return 0
    last_us = max(last for _, last in hours)
    horizon_us = last_us if before.until_us is None else max(last_us, before.until_us)
    known_us = horizon_us if before.until_us is None else before.until_us
    spans = affected(hours, ttl_us, known_us, horizon_us)
    rows = gold.make(lake, Reach(ttl_us, horizon_us), spans)
    lake.replace(gold.table, rows, "true" if everything else " OR ".join(map(_sql, spans)))
    failpoints.reached("gold")
    marks = [Mark(*key, offset, 0, horizon_us) for key, offset in silver.next_offsets.items()]
    advance(lake, gold.table, before.batch + 1, marks)
    return sum((span.end - span.begin) // MINUTE_US for span in spans)


def _within_time(lake: Lake, gold: Gold, before: Reached, silver: Reached) -> Reached:
    """Gold's position. A horizon later than any time that can be true is replaced, and the minutes behind it removed.

    A release before `plausible` moved it there, with a report of such a time.
    """
    if before.until_us is None or silver.until_us is None or before.until_us <= silver.until_us + AHEAD_US:
        return before
    known = _rows(lake, gold.reports).withColumn("topic", f.lit(_TOPICS[gold.reports])).where(before.is_below())
    [(until_us,)] = known.agg(f.max(f.unix_micros(f.coalesce("at", "appended_at")))).collect()
    lake.remove(gold.table, f"minute > {utc.timestamp(silver.until_us if until_us is None else until_us)}")
    return msgspec.structs.replace(before, until_us=until_us)


def affected(hours: Iterable[tuple[int, int]], ttl_us: int, horizon_before: int, horizon: int) -> list[Span]:
    """The minutes that change, as disjoint spans.

    `hours`: first and last time of the new reports, hour by hour. All in microseconds.
    """
    changed = [(first, min(last + ttl_us, horizon)) for first, last in hours] + [(horizon_before, horizon)]
    spans: list[Span] = []
    for span in sorted(Span(_floor(first), _floor(last) + MINUTE_US) for first, last in changed if last >= first):
        if spans and span.begin <= spans[-1].end:
            spans[-1] = Span(spans[-1].begin, max(spans[-1].end, span.end))
        else:
            spans.append(span)
    return spans if len(spans) <= SPANS else [Span(spans[0].begin, spans[-1].end)]


def _changed(lake: Lake, gold: Gold, before: Reached) -> list[tuple[int, int]]:
    """First and last time of the reports that silver has and gold lacks, one pair per hour."""
    found: list[tuple[int, int]] = []
    for table in {gold.reports, "broker_load"}:
        rows = _rows(lake, table).withColumn("topic", f.lit(_TOPICS[table])).where(~before.is_below())
        counted = rows if table == gold.reports else rows.where(f.col("at").isNull())
        time = counted.select(f.unix_micros(f.coalesce("at", "appended_at")).alias("us"))
        hours = time.groupBy(f.floor(f.col("us") / HOUR_US)).agg(f.min("us"), f.max("us"))
        found += [(row[1], row[2]) for row in hours.collect()]
    return found


def _rows(lake: Lake, table: str) -> DataFrame:
    """Rows of silver, without those of impossible times."""
    return lake.table(table).where(is_plausible())


def _near(spans: list[Span], ttl_us: int) -> Column:
    """Whether silver rows may be in force in one of the spans. Also by day, so that Spark skips whole folders."""
    wider = [Span(span.begin - ttl_us, span.end) for span in spans]
    days = f.col("day").between(f.lit(utc.time_of(wider[0].begin).date()), f.lit(utc.time_of(wider[-1].end).date()))
    at, appended = (_within(f.col(name), wider) for name in ("at", "appended_at"))
    return days & (at | (f.col("at").isNull() & appended))


def _within(time: Column, spans: list[Span]) -> Column:
    """`minutes.within` of a timestamp, in a form that lets Spark skip files."""
    inside = f.lit(False)
    for span in spans:
        inside = inside | ((time >= f.lit(utc.time_of(span.begin))) & (time < f.lit(utc.time_of(span.end))))
    return inside


def _brokers(lake: Lake, reach: Reach, spans: list[Span]) -> DataFrame:
    return broker_minutes(_rows(lake, "broker_load").where(_near(spans, reach.ttl_us)), reach, spans)


def _bundles(lake: Lake, reach: Reach, spans: list[Span]) -> DataFrame:
    near = _near(spans, reach.ttl_us)
    totals, bundles = (_rows(lake, name).where(near) for name in ("bundle_total", "bundle_load"))
    deletions = _rows(lake, "broker_load").where(near & f.col("at").isNull())
    return bundle_minutes(totals, bundles, deletions, reach, spans)


GOLD = (Gold("broker_minute", "broker_load", _brokers), Gold("bundle_minute", "bundle_total", _bundles))


def _sql(span: Span) -> str:
    begin, last = utc.time_of(span.begin), utc.time_of(span.end - 1)
    return (
        f"(day >= DATE'{begin:%Y-%m-%d}' AND day <= DATE'{last:%Y-%m-%d}' AND "
        f"minute >= {utc.timestamp(span.begin)} AND minute < {utc.timestamp(span.end)})"
    )


def _floor(us: int) -> int:
    return us - us % MINUTE_US
