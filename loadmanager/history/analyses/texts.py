"""Analyses that are one SQL text each, `*.sql` here: Spark and DuckDB run the same.

A text begins with comments: its title, what it `reads` (tables of `columns.py`, or other texts), and the `order` to
sort by for people; a text without an order is a part of others. `:begin_us` and `:end_us` are the window's ends.
"""

from __future__ import annotations

from collections import Counter
from importlib.resources import files

import msgspec
from pyspark.sql import DataFrame

from loadmanager.history.analyses.analysis import Analysis, Options, Tables
from loadmanager.history.analyses.sharing import shareable
from loadmanager.history.columns import TABLES
from loadmanager.history.duck import Connection
from loadmanager.history.lake import Window
from loadmanager.history.minutes import ENDLESS_US
from loadmanager.history.texts import filled, on_spark
from loadmanager.history.utc import micros


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
_SHARED = {name for name, count in Counter(each for text in TEXTS.values() for each in text.reads).items() if count > 1}


def needs(name: str) -> tuple[str, ...]:
    """The tables that a text reads, itself and through others."""
    found = [[each] if each in TABLES else needs(each) for each in TEXTS[name].reads]
    return tuple(dict.fromkeys(table for tables in found for table in tables))


def analysis(name: str) -> Analysis:
    """The analysis of a text."""
    text = TEXTS[name]

    def run(tables: Tables, window: Window, options: Options) -> DataFrame:
        return _relation(tables, name, window, options)

    return Analysis(name, text.title, needs(name), run, text.order)


def _relation(tables: Tables, name: str, window: Window, options: Options) -> DataFrame:
    make = _kept if name in _SHARED else _made
    return tables(name) if name in TABLES else make(tables, name, window, options)


def _made(tables: Tables, name: str, window: Window, options: Options) -> DataFrame:
    inputs = {each: _relation(tables, each, window, options) for each in TEXTS[name].reads}
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
    return filled(
        TEXTS[name].sql,
        begin_us=-ENDLESS_US if window.begin is None else micros(window.begin),
        end_us=ENDLESS_US if window.end is None else micros(window.end),
        endless_us=ENDLESS_US,
        rest_us=round(options.rest_s * 1e6),
    )
