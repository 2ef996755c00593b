"""Days and times in UTC, whatever time zone the session has.

Spark's `to_date` and timestamps as text use the session's time zone, which the creator of the session chose.
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
