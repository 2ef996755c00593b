"""What an analysis is, its options, and how it is made of SQL texts, `*.sql` here: Spark and DuckDB run the same.

`run(tables, window, options)` gets every row of a table from `tables(name)` and cuts the window itself, because earlier
records say who holds a bundle at its begin. It builds a plan and runs nothing, so the caller may write the answer,
count it, or join it with more.

A text begins with comments: its title, what it `reads` (tables of `columns.py`, or other texts), and the `order` to
sort by for people. A text without an order is a part of others, or ends in a function. `:begin_us` and `:end_us` are
the window's ends; `:begin` and `:end` are the same as timestamps, which let an engine skip files. `:cpu_percent` and
other figures are the column's value, or 0 if it is implausible (as `credible`). `:cores` is what a broker uses.
`:…_room` is the capacity that it declares, or null; for CPU one core instead of null.

With Spark, parts that several analyses share are planned and computed once (`shared`). Plans are shared too: Spark
analyses a whole plan again with each step on it, up to half a second for a composed one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from importlib.resources import files
from threading import Lock
from typing import Any, TypeVar, TypeVarTuple

import msgspec
from pyspark import StorageLevel
from pyspark.sql import DataFrame

from loadmanager.consumers.coordinator.lag_topic import EVERY_S
from loadmanager.history.columns import TABLES
from loadmanager.history.duck import Connection
from loadmanager.history.lake import Window
from loadmanager.history.minutes import ENDLESS_US
from loadmanager.history.texts import filled, on_spark
from loadmanager.history.utc import micros
from loadmanager.model.boundaries import MOST_PARTS
from loadmanager.model.load import CAPACITIES, DEFAULT_WEIGHTS, RESOURCES, Weights, weights_of
from loadmanager.settings import Settings
from loadmanager.strategies.playground.bounds import IDLE
from loadmanager.strategies.splitting.merging import MERGE_BELOW
from loadmanager.strategies.splitting.splits import FILL_AIMED_AT, Limits

Table = Any
"""A pyarrow.Table; pyarrow ships no types."""
Tables = Callable[[str], DataFrame]
"""All rows of a table of `schemas.py`; empty where the table does not exist yet. `Lake.table` is one."""


class Options(msgspec.Struct, frozen=True):
    """Options of the analyses: production's settings, and how much to answer.

    `measure` is the resource of seasons and forecasts: a name of RESOURCES, except memory.
    """

    limits: Limits
    """What one bundle may carry before it is split."""
    weights: Weights = DEFAULT_WEIGHTS
    tolerance: float = 0.1
    rest_s: float = 1800.0
    merge_below: float = 0.1
    """A fraction of the limits."""
    namespace_min_bundles: int = 4
    namespace_max_bundles: int = 128
    measure: str = "cpu"
    top: int = 20
    """Hot bundles to show."""
    horizon_h: int = 24
    """How far forecasts go."""
    settle_s: float = 300.0
    """How long before and after a decision its effect is measured."""

    @staticmethod
    def of(settings: Settings) -> Options:
        """From the settings of a cluster."""
        return Options(
            limits=Limits.of(settings),
            weights=weights_of(settings),
            tolerance=settings.tolerance,
            rest_s=settings.bundle_rest_s,
            merge_below=MERGE_BELOW,
            namespace_min_bundles=settings.namespace_min_bundles,
            namespace_max_bundles=settings.namespace_max_bundles,
        )


DEFAULTS = Options.of(Settings.model_construct(None))
"""From the defaults of this release; reads no environment."""


class Analysis(msgspec.Struct, frozen=True):
    """One analysis.

    `needs` are the tables that it reads, so that a caller can tell why an answer is empty. `order` are the columns to
    sort by for people: `run` sorts nothing, `ordered` does. `text` is what both engines run, and `finish` makes the
    answer of the text's rows, where SQL cannot.
    """

    name: str
    title: str
    needs: tuple[str, ...]
    run: Callable[[Tables, Window, Options], DataFrame]
    order: tuple[str, ...]
    text: str
    finish: Callable[[Table, Options], Table] | None = None

    def ordered(self, tables: Tables, window: Window, options: Options) -> DataFrame:
        """The answer sorted by `order`, so that what is shown or cut off is the same each time."""
        return self.run(tables, window, options).orderBy(*self.order)


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
    if TEXTS[name].order or not isinstance(tables, Shared):
        return _made(tables, name, window, options)
    return tables.of(_made, name, window, options)


def _made(tables: Tables, name: str, window: Window, options: Options) -> DataFrame:
    inputs = {each: relation(tables, each, window, options) for each in TEXTS[name].reads}
    return on_spark(_filled(name, window, options), inputs)


def usage_of(weights: Weights) -> str:
    """SQL: how full a row's broker is, by its fullest resource among those with a weight and a capacity."""
    return filled(
        "greatest(0e0, 0e0, :cpu_weight * :cores / :cpu_room, "
        ":memory_weight * (:memory_percent / 100 * :memory_bytes_room) / :memory_bytes_room, "
        ":bandwidth_weight * :in_rate_bytes_s / :in_rate_bytes_s_room, "
        ":bandwidth_weight * :out_rate_bytes_s / :out_rate_bytes_s_room, "
        ":message_rate_weight * (:in_rate_msg_s + :out_rate_msg_s) / :rate_msg_s_room)",
        **_weights(weights),
        **_FIGURES,
    )


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
    limits = options.limits
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
        products=_PRODUCTS,
        **_weights(options.weights),
        **_FIGURES,
    )


def _weights(weights: Weights) -> dict[str, str]:
    kinds = ("cpu", "memory", "bandwidth", "message_rate")
    return {f"{kind}_weight": _double(getattr(weights, kind)) for kind in kinds}


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


Args = TypeVarTuple("Args")


class Shared:
    """Tables, and a cache of what is made of them with `of`; calls `keep` for each result when it is made.

    Thread-safe: of two calls for the same result, one waits for the other.
    """

    def __init__(self, tables: Tables, keep: Callable[[DataFrame], None]) -> None:
        self._tables = tables
        self._keep = keep
        self._made: dict[tuple[Hashable, ...], DataFrame] = {}
        self._turns: dict[tuple[Hashable, ...], Lock] = {}

    def __call__(self, name: str) -> DataFrame:
        """The table."""
        return self._get((name,), lambda: self._tables(name))

    def of(self, make: Callable[[Tables, *Args], DataFrame], *args: *Args) -> DataFrame:
        """What `make` makes of these tables, from the cache if it was made before. Arguments must be hashable."""
        return self._get((make, *args), lambda: self._kept(make(self, *args)))

    def _get(self, what: tuple[Hashable, ...], make: Callable[[], DataFrame]) -> DataFrame:
        with self._turns.setdefault(what, Lock()):
            if what not in self._made:
                self._made[what] = make()
            return self._made[what]

    def _kept(self, rows: DataFrame) -> DataFrame:
        self._keep(rows)
        return rows


@contextmanager
def shared(tables: Tables) -> Generator[Tables]:
    """The tables to give to analyses in this context: shared parts are computed once and persisted until its end."""
    with ExitStack() as kept:

        def keep(rows: DataFrame) -> None:
            rows.persist(StorageLevel.MEMORY_AND_DISK)
            kept.callback(rows.unpersist)

        yield Shared(tables, keep)


T = TypeVar("T")
AT_ONCE = 4
"""Analyses at the same time: one over little data is mostly planning, which takes one thread and leaves cores free."""


def answers(
    chosen: Sequence[Analysis],
    tables: Tables,
    window: Window,
    options: Options,
    take: Callable[[DataFrame], T],
    at_once: int = AT_ONCE,
) -> Generator[T]:
    """What `take` makes of each answer, in the order of `chosen`.

    `take` is called in threads, and must not keep a plan. An error of `take` is raised when its turn comes; what has
    not begun then is cancelled.
    """

    def answer(analysis: Analysis) -> T:
        return take(analysis.ordered(common, window, options))

    with shared(tables) as common, ThreadPoolExecutor(at_once) as pool:
        pending = [pool.submit(answer, each) for each in chosen]
        try:
            for future in pending:
                yield future.result()
        finally:
            for future in pending:
                future.cancel()
