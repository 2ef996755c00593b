"""When a backlog will be gone, by the rates of production and consumption over the last while. Pure.

A forecast says what happens if both rates stay as they are, and says why if it has none.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

import msgspec

from loadmanager.consumers.backlog.figures import Backlog

MOST_POINTS = 1_000


class Outlook(Enum):
    """What becomes of a backlog."""

    EMPTY = "nothing waits"
    DRAINS = "it drains"
    NEVER = "it never drains at these rates"
    UNKNOWN = "not known yet"


class Forecast(msgspec.Struct, frozen=True):
    """`drain_s` from now until nothing waits; None if that is never, or not known. Rates are in records a second."""

    outlook: Outlook
    why: str
    drain_s: float | None = None
    produced_per_s: float | None = None
    consumed_per_s: float | None = None


class _Point(msgspec.Struct, frozen=True):
    at_s: float
    backlog: Backlog


class Window:
    """Backlogs of the same queues over the last `length_s` seconds, at most MOST_POINTS of them."""

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._points = deque[_Point](maxlen=MOST_POINTS)
        self._began = "no figures yet"

    def add(self, at_s: float, backlog: Backlog) -> None:
        """Take in a backlog. `at_s` is of a monotonic clock.

        The window restarts if the queues differ or offsets went back, because differences would not be rates.
        """
        last = self._points[-1].backlog if self._points else None
        if last is not None and (why := _break(last, backlog)):
            self._points.clear()
            self._began = why
        self._points.append(_Point(at_s, backlog))
        while len(self._points) > 2 and self._points[1].at_s <= at_s - self._length_s:
            self._points.popleft()

    def forecast(self) -> Forecast:
        """The forecast from the newest backlog on."""
        if not self._points:
            return Forecast(Outlook.UNKNOWN, self._began)
        first, last = self._points[0], self._points[-1]
        lag = last.backlog.lag
        if lag is None:
            return Forecast(Outlook.UNKNOWN, "no queue has a known end")
        span_s = last.at_s - first.at_s
        if span_s <= 0:
            if lag.messages == 0:
                return Forecast(Outlook.EMPTY, "all records are consumed", 0.0)
            return Forecast(Outlook.UNKNOWN, f"a rate needs two moments: {self._began}")
        produced = (last.backlog.ends - first.backlog.ends) / span_s
        consumed = (last.backlog.consumed - first.backlog.consumed) / span_s
        return _outlook(lag.messages, produced, consumed, span_s)


def _outlook(lag: int, produced: float, consumed: float, span_s: float) -> Forecast:
    rates = f"{consumed:.6g} records/s are consumed and {produced:.6g} produced, over the last {span_s:.6g} s"
    if lag == 0:
        return Forecast(Outlook.EMPTY, "all records are consumed", 0.0, produced, consumed)
    if consumed <= produced:
        why = "nothing was consumed" if consumed == 0 else "no more is consumed than is produced"
        return Forecast(Outlook.NEVER, f"{why}: {rates}", None, produced, consumed)
    return Forecast(Outlook.DRAINS, rates, lag / (consumed - produced), produced, consumed)


def _break(last: Backlog, next_one: Backlog) -> str:
    """Why two backlogs cannot be compared; "" if they can."""
    if (last.queues, last.uncommitted, last.unknown) != (next_one.queues, next_one.uncommitted, next_one.unknown):
        return "the queues with offsets changed"
    if next_one.ends < last.ends or next_one.consumed < last.consumed:
        return "offsets went back (a reset, or a recreated topic)"
    return ""
