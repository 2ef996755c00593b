"""Days and times in UTC, whatever time zone the session has, and which times of records can be true.

Spark's `to_date` and timestamps as text use the session's time zone, which the creator of the session chose.

A wrong time would stop or distort what is computed from all records. A record is written before the log takes it. So
its time is not later than the log's time, apart from clocks that differ by at most `AHEAD_US`. A report may come
arbitrarily late, but no clock shows a time before 1970. Gold knows all reports up to the latest one: a report of the
year 9999 would move that moment to a year that no minute can be computed for.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pyspark.sql import Column
from pyspark.sql import functions as f

DAY_US = 86_400_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_of(us: int) -> datetime:
    """Microseconds since 1970 as a time. Raises OverflowError beyond the years 1 to 9999."""
    return _EPOCH + timedelta(microseconds=us)


def micros(at: datetime) -> int:
    """A time as microseconds; without a zone it is UTC."""
    known = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return (known - _EPOCH) // timedelta(microseconds=1)


def day_of(time: Column) -> Column:
    """The UTC date of a timestamp."""
    us = f.unix_micros(time)
    whole = us - f.pmod(us, f.lit(DAY_US))  # `floor` of a fraction is wrong after the year 2255
    return f.date_from_unix_date((whole / DAY_US).cast("int"))


def timestamp(us: int) -> str:
    """Microseconds since 1970 as SQL, in whole seconds."""
    return f"TIMESTAMP'{time_of(us):%Y-%m-%d %H:%M:%S} UTC'"


AHEAD_US = 86_400_000_000
"""A day: more than clocks and mistaken time zones differ by."""


def refusal(at_us: int, appended_us: int) -> str | None:
    """Why a record that the log took at `appended_us` cannot be of `at_us`; None if it can. Microseconds since 1970."""
    if at_us < 0:
        return f"its time is before 1970 ({at_us // 1000} ms): correct its writer's clock"
    if at_us > appended_us + AHEAD_US:
        return f"its time is more than a day after the log took it ({at_us // 1000} ms): correct its writer's clock"
    return None
