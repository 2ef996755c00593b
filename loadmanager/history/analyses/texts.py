"""Analyses that are one SQL text each, `*.sql` here: Spark and DuckDB run the same.

A text begins with comments: its title, what it `reads` (tables of `columns.py`, or other texts), and the `order` to
sort by for people. A text without an order is a part of others, or ends in a function. `:begin_us` and `:end_us` are
the window's ends; `:begin` and `:end` are the same as timestamps, which let an engine skip files. `:cpu_percent` and
other figures are the column's value, or 0 if it is implausible (as `credible`). `:cores` is what a broker uses.
`:…_room` is the capacity that it declares, or null; for CPU one core instead of null.
"""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.resources import files

import msgspec
from pyspark.sql import DataFrame

from loadmanager.consumers.coordinator.lag_topic import EVERY_S
from loadmanager.history.analyses.analysis import Analysis, Options, Tables
from loadmanager.history.analyses.sharing import shareable
from loadmanager.history.columns import TABLES
from loadmanager.history.duck import Connection
from loadmanager.history.lake import Window
from loadmanager.history.minutes import ENDLESS_US
from loadmanager.history.texts import filled, on_spark
from loadmanager.history.utc import micros
from loadmanager.model.boundaries import MOST_PARTS
from loadmanager.model.load import CAPACITIES, RESOURCES
from loadmanager.strategies.playground.bounds import IDLE
from loadmanager.strategies.splitting.splits import FILL_AIMED_AT


class Text(msgspec.Struct, frozen=True):
    """A text and its head."""

    name: str
    title: str
    reads: tuple[str, ...]
    order: tuple[str, ...]
    sql: str


def _read() -> dict[str, Text]:
    found: dict[str, Text] = {}
    for place in files("loadmanager.history.analyses").iterdir():
        if place.name.endswith(".sql"):
            sql, name = place.read_text(encoding="utf-8"), place.name.removesuffix(".sql")
            title, *head = [line.removeprefix("-- ") for line in sql.splitlines()[:3]]
            said = dict(line.split(": ", 1) for line in head if ": " in line)
            reads, order = (tuple(said.get(key, "").split(", ")) if key in said else () for key in ("reads", "order"))
            found[name] = Text(name, title, reads, order, sql)
    return found


TEXTS = _read()
"""By name."""


def needs(name: str) -> tuple[str, ...]:
    """The tables that a text reads, itself and through others."""
    found = [[each] if each in TABLES else needs(each) for each in TEXTS[name].reads]
    return tuple(dict.fromkeys(table for tables in found for table in tables))


def analysis(name: str) -> Analysis:
    """The analysis of a text."""
    text = TEXTS[name]

    def run(tables: Tables, window: Window, options: Options) -> DataFrame:
        return relation(tables, name, window, options)

    return Analysis(name, text.title, needs(name), run, text.order, name)


def relation(tables: Tables, name: str, window: Window, options: Options) -> DataFrame:
    """A table, or the answer to a text."""
    if name in TABLES:
        return tables(name)
    return (_made if TEXTS[name].order else _kept)(tables, name, window, options)


def _made(tables: Tables, name: str, window: Window, options: Options) -> DataFrame:
    inputs = {each: relation(tables, each, window, options) for each in TEXTS[name].reads}
    return on_spark(_filled(name, window, options), inputs)


@shareable
def _kept(tables: Tables, name: str, window: Window, options: Options) -> DataFrame:
    return _made(tables, name, window, options)


def prepare_duckdb(db: Connection, name: str, window: Window, options: Options) -> None:
    """Make the text a view, with all that it reads but tables."""
    for each in TEXTS[name].reads:
        if each in TEXTS:
            prepare_duckdb(db, each, window, options)
    db.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS {_filled(name, window, options)}")


def _filled(name: str, window: Window, options: Options) -> str:
    begin_us = -ENDLESS_US if window.begin is None else micros(window.begin)
    end_us = ENDLESS_US if window.end is None else micros(window.end)
    around_us = round((options.settle_s + 180) * 1e6)
    limits, weights = options.limits, options.weights
    return filled(
        TEXTS[name].sql,
        begin_us=begin_us,
        end_us=end_us,
        endless_us=ENDLESS_US,
        begin=_timestamp(begin_us),
        end=_timestamp(end_us),
        around_begin=_timestamp(begin_us - around_us),
        around_end=_timestamp(end_us + around_us),
        lag_ttl_us=LAG_TTL_US,
        rest_us=round(options.rest_s * 1e6),
        settle_m=max(1, round(options.settle_s / 60)),
        measure=options.measure,
        measured=OF_BUNDLES[options.measure],
        most_hours=MOST_HOURS,
        top=options.top,
        least_bundles=options.namespace_min_bundles,
        most_bundles=options.namespace_max_bundles,
        limited=str(limits.any).lower(),
        idle=_double(IDLE),
        tolerance=_double(options.tolerance),
        merge_below=_double(options.merge_below),
        most_parts=_double(MOST_PARTS),
        fill_aimed_at=_double(FILL_AIMED_AT),
        limit_keys=_double(limits.keys),
        limit_sessions=_double(limits.sessions),
        limit_msg_s=_double(limits.rate_msg_s),
        limit_bytes_s=_double(limits.bandwidth_bytes_s),
        cpu_weight=_double(weights.cpu),
        memory_weight=_double(weights.memory),
        bandwidth_weight=_double(weights.bandwidth),
        message_rate_weight=_double(weights.message_rate),
        products=_PRODUCTS,
        **_FIGURES,
    )


def _timestamp(us: int) -> str:
    """Within the years that both engines know."""
    return f"timestamp_micros({min(max(us, _FIRST_US), _LAST_US)})"


def _double(value: float) -> str:
    return f"CAST('{value}' AS double)"


OF_BUNDLES = dict(zip((RESOURCES[n] for n in (0, 2, 3, 4)), ("cpu", "bytes_in", "bytes_out", "messages"), strict=True))
"""The resources that are measured by bundle, and the columns with their sums in `bundle_hours.sql`. Memory is not among
them, because it does not fall when a bundle goes."""
MOST_HOURS = 24 * 7 * 60
"""The most hours of a series, the last ones: a clock that is years wrong must not make matrices of centuries."""
LAG_TTL_US = 5 * round(EVERY_S * 1e6)
"""For how long a report of lag is in force at most: coordinators report each minute, or in turns."""
TERMS = 6
"""Of the regression in `capacity.py`."""
_FIRST_US, _LAST_US = (micros(datetime(*day, tzinfo=UTC)) for day in ((1, 1, 2), (9999, 12, 30)))
_FINITE = "(CASE WHEN {0} {1} 0 AND {0} < CAST('infinity' AS double) THEN {0} END)"
_FIGURES = {
    name: f"coalesce({_FINITE.format(name, '>=')}, 0e0)"
    for name in (
        *("cpu_percent", "memory_percent", "in_rate_bytes_s", "out_rate_bytes_s", "in_rate_msg_s", "out_rate_msg_s"),
        *("bundles", "keys", "sessions"),
    )
}
_FIGURES.update((f"{name}_room", _FINITE.format(f"capacity['{name}']", ">")) for name in CAPACITIES)
_FIGURES["cpu_room"] = f"coalesce({_FIGURES['cpu_room']}, 1e0)"
_FIGURES["cores"] = f"({_FIGURES['cpu_percent']} / 100 * {_FIGURES['cpu_room']})"
_PRODUCTS = ",\n       ".join(
    [f"sum(t.w * t.x{i} * t.x{j}) AS g{i}_{j}" for i in range(TERMS) for j in range(i, TERMS)]
    + [f"sum(t.w * t.x{i} * t.y) AS c{i}" for i in range(TERMS)]
)
