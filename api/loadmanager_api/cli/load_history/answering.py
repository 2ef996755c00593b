"""Prints rows of a DataFrame for people and programs: at most the wanted number, with a note if there are more."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from loadmanager_api.cli.load_history.options import Job
from loadmanager_api.cli.printing import show

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Rows = list[dict[str, Any]]


def taken(answer: DataFrame, most: int) -> tuple[Rows, bool]:
    """At most so many rows, times in UTC, and whether there were more."""
    rows: Rows = answer.limit(most + 1).toArrow().to_pylist(maps_as_pydicts="lossy")
    return rows[:most], len(rows) > most


def table(job: Job, answer: Any, columns: Sequence[str], rows: Sequence[dict[str, Any]], empty: str = "none") -> None:
    """Print the answer, or these columns of the rows."""
    show(job.shown, answer, columns, [[cell_of(row.get(name)) for name in columns] for row in rows], empty=empty)


def cell_of(value: Any) -> Any:
    """How a value looks in a table; figures keep three digits, whatever their size."""
    match value:
        case float():
            return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S}"
        case _:
            return value
