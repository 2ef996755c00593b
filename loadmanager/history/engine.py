"""Runs analyses with DuckDB: on a lake on this disk, without a JVM. Which engine a command takes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from duckdb import DuckDBPyRelation

from loadmanager.errors import NotFound
from loadmanager.history.analyses import ANALYSES
from loadmanager.history.analyses.analysis import Options, prepare_duckdb
from loadmanager.history.coverage import RECORDED, nothing_recorded
from loadmanager.history.delta import opened
from loadmanager.history.duck import Connection, connected, versions
from loadmanager.history.lake import Window
from loadmanager.history.minutes import ENDLESS_US
from loadmanager.history.utc import micros

MOST_BYTES = 2 << 30
"""Parquet that `auto` gives to DuckDB; beyond, Spark spreads the work."""


def why_spark(root: Path, names: Iterable[str]) -> str | None:
    """Why DuckDB cannot answer these analyses of a lake on this disk, or should not; None if it can."""
    size = sum(_bytes(root, table) for table in {table for name in names for table in ANALYSES[name].needs})
    return f"the tables have {size / 1e9:.0f} GB" if size > MOST_BYTES else None


def _bytes(root: Path, table: str) -> int:
    found = opened(root / "tables" / table)
    return 0 if found is None else sum(found.get_add_actions()["size_bytes"].to_pylist())


class Duck:
    """A lake as DuckDB reads it."""

    def __init__(self, db: Connection) -> None:
        self._db = db

    def check_recorded(self, window: Window) -> None:
        """As `coverage.check_recorded`."""
        inside = _inside(window)
        if any(
            self._one(f"SELECT 1 FROM {name} t WHERE {inside('t.' + time)} LIMIT 1") for name, time in RECORDED.items()
        ):
            return
        times = " UNION ALL ".join(f"SELECT t.{time} AS moment FROM {name} t" for name, time in RECORDED.items())
        begin, end = self._one(f"SELECT min(moment), max(moment) FROM ({times})") or (None, None)
        raise NotFound(nothing_recorded(begin, end, window))

    def recorded_settings(self, window: Window) -> dict[str, Any]:
        """The settings of the last decision before the window's end."""
        inside = _inside(Window(None, window.end))
        found = self._one(
            f"SELECT d.settings FROM decision d WHERE d.settings IS NOT NULL AND {inside('d.at')} "
            "ORDER BY d.at DESC, d.offset DESC LIMIT 1"
        )
        return msgspec.json.decode(found[0], type=dict[str, Any]) if found else {}

    def answer(self, name: str, window: Window, options: Options, most: int) -> tuple[list[dict[str, Any]], bool]:
        """At most so many rows of an analysis, in its order, and whether there are more."""
        order = ", ".join(f'"{each}" NULLS FIRST' for each in ANALYSES[name].order)
        rows = answered(self._db, name, window, options).order(order).limit(most + 1)
        found = rows.to_arrow_table().to_pylist()
        return found[:most], len(found) > most

    def versions(self, name: str) -> dict[str, int]:
        """The versions that were read of the tables that an analysis needs."""
        return {table: version for table, version in versions(self._db).items() if table in ANALYSES[name].needs}

    def _one(self, question: str) -> Any:
        return self._db.execute(question).fetchone()


def answered(db: Connection, name: str, window: Window, options: Options) -> DuckDBPyRelation:
    """The answer of an analysis, without an order, until the connection answers the next one."""
    analysis = ANALYSES[name]
    prepare_duckdb(db, analysis.text, window, options)
    rows = db.table(analysis.text)
    if analysis.finish is None:
        return rows
    db.register("finished", analysis.finish(rows.to_arrow_table(), options))
    return db.table("finished")


@contextmanager
def on_duckdb(root: Path, names: Iterable[str]) -> Generator[Duck]:
    """The lake, for these analyses. Raises as `duck.connected`."""
    tables = {*RECORDED, "decision", *(table for name in names for table in ANALYSES[name].needs)}
    with (
        TemporaryDirectory(prefix="loadmanager-analyse-") as scratch,
        connected(root, Path(scratch), " ".join(sorted(tables))) as db,
    ):
        yield Duck(db)


def _inside(window: Window) -> Callable[[str], str]:
    begin = -ENDLESS_US if window.begin is None else micros(window.begin)
    end = ENDLESS_US if window.end is None else micros(window.end)
    return lambda time: f"unix_micros({time}) >= {begin} AND unix_micros({time}) < {end}"
