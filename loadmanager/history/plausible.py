"""Which times of records can be true. A wrong one would stop or distort what is computed from all of them.

A record is written before the log takes it. So its time is not later than the log's time, apart from clocks that differ
by at most `AHEAD_US`. A report may come arbitrarily late, but no clock shows a time before 1970. Gold knows all reports
up to the latest one: a report of the year 9999 would move that moment to a year that no minute can be computed for.
"""

from __future__ import annotations

AHEAD_US = 86_400_000_000
"""A day: more than clocks and mistaken time zones differ by."""


def refusal(at_us: int, appended_us: int) -> str | None:
    """Why a record that the log took at `appended_us` cannot be of `at_us`; None if it can. Microseconds since 1970."""
    if at_us < 0:
        return f"its time is before 1970 ({at_us // 1000} ms): correct its writer's clock"
    if at_us > appended_us + AHEAD_US:
        return f"its time is more than a day after the log took it ({at_us // 1000} ms): correct its writer's clock"
    return None
