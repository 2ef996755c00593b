"""Whether anything was recorded in a window.

Without this check an empty answer could mean two things: there were no moves, or nothing was recorded.
"""

from __future__ import annotations

from datetime import datetime
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loadmanager.errors import NotFound
from loadmanager.history.lake import ALWAYS, Lake, Window

RECORDED = {"broker_minute": "minute", "broker_load": "at", "channel": "at", "decision": "at", "group_lag": "at"}
"""Tables and their time columns. A recorded cluster has rows of any time in one of them; the first table is the
smallest, and is never trimmed."""


def check_recorded(lake: Lake, window: Window = ALWAYS) -> None:
    """Raises NotFound where nothing of the window is recorded; the message says which time is."""
    if all(lake.table(name, window).isEmpty() for name in RECORDED):
        raise NotFound(_nothing(lake, window))


def _nothing(lake: Lake, window: Window) -> str:
    times = (lake.table(name).select(f.col(time).alias("at")) for name, time in RECORDED.items())
    edges = reduce(DataFrame.union, times).agg(f.min("at").alias("begin"), f.max("at").alias("end"))
    [found] = edges.toArrow().to_pylist()
    return nothing_recorded(found["begin"], found["end"], window)


def nothing_recorded(begin: datetime | None, end: datetime | None, window: Window) -> str:
    """Why an answer would be empty. `begin` and `end` are those of all records, None where there are none."""
    if begin is None or end is None:
        return "nothing is recorded in this lake yet: run `loadmanager history ingest` first"
    return (
        f"nothing is recorded {_told(window)}; the lake has records from {_time(begin)} to {_time(end)} (UTC): "
        "take another --from or --to"
    )


def _told(window: Window) -> str:
    match window:
        case Window(datetime() as begin, datetime() as end):
            return f"from {_time(begin)} to {_time(end)}"
        case Window(datetime() as begin):
            return f"from {_time(begin)} on"
        case Window(end=datetime() as end):
            return f"before {_time(end)}"
        case _:
            return "at any time"


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%S}"
