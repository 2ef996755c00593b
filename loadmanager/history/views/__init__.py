"""SQL views of the lake whose names say what is in them: one file each, the same for Spark and for DuckDB.

A file begins with comments: what a row is, then each column with its meaning and unit. A view selects from the tables
of `columns.py`, in SQL that both engines understand; `duck.py` gives DuckDB the few functions of Spark that it lacks.
All times are UTC.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from typing import TYPE_CHECKING

import msgspec

from loadmanager.history.columns import TABLES

if TYPE_CHECKING:
    from loadmanager.history.lake import Lake

_COLUMN = re.compile(r"-- (\w+): (.+)")


class View(msgspec.Struct, frozen=True):
    """A view: its `sql`, what a row is, and the meaning of each column, in their order."""

    name: str
    title: str
    columns: Mapping[str, str]
    sql: str


def _read() -> Mapping[str, View]:
    places = sorted(files(__name__).iterdir(), key=lambda place: place.name)
    return {
        place.name.removesuffix(".sql"): parsed(place.name.removesuffix(".sql"), place.read_text(encoding="utf-8"))
        for place in places
        if place.name.endswith(".sql")
    }


def parsed(name: str, text: str) -> View:
    """The view of a file's text."""
    comments = [line for line in text.splitlines() if line.startswith("--")]
    sql = text.split("\n", len(comments))[-1].strip()
    matched = (_COLUMN.fullmatch(line) for line in comments[1:])
    columns = {found[1]: found[2] for found in matched if found is not None}
    return View(name, comments[0].removeprefix("-- "), columns, sql)


VIEWS = _read()
"""By name."""


def register(lake: Lake) -> None:
    """Give the lake's session a temporary view for each table, and each of VIEWS."""
    for name in TABLES:
        lake.table(name).createOrReplaceTempView(name)
    for view in VIEWS.values():
        lake.spark.sql(view.sql).createOrReplaceTempView(view.name)
