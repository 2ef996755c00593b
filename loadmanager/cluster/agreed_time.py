"""The time that decides what is trimmed: never this broker's wall clock alone.

Every broker writes its wall clock into its records in the channel. This broker compares those of the last minute with
its own clock. While a live broker's clock is further away than `APART_MS`, there is no agreed time, and nothing is
trimmed: which of the two is right is not known. Without other live brokers, the agreed time starts from the last
record of another broker, or from what the channel showed at the start. It advances by elapsed monotonic time, never
beyond this broker's wall clock. Pure: the shell gives records and clocks.

In a quiet cluster brokers write only load reports. Each has its sender's time and the log's, so the clocks can be
compared however late a report is read. Only `offset_ms` uses them: on SQLite the log's time is the sender's too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from statistics import median

from statechannel.law.verdict import Change

APART_MS = 60_000
"""The most that clocks of brokers may differ, with the delay of the log."""

FRESH_S = 60.0
"""How long a broker counts as live after its last record."""

KNOWN_AT_MOST = 2_000
"""The most brokers remembered; those heard longest ago are forgotten first."""


_BEFORE = ""
"""Stands, among the names of others, for all that was written before this broker's start."""
_log = logging.getLogger(__name__)


class AgreedTime:
    """`take` gets each accepted change of the channel. `clock_s` is monotonic."""

    def __init__(self, name: str, clock_s: Callable[[], float], wall_ms: Callable[[], int]) -> None:
        self._name = name
        self._clock_s = clock_s
        self._wall_ms = wall_ms
        self._has_begun = False
        self._told = frozenset[str]()
        """Brokers whose clock is apart from ours, as the log shows."""
        self._heard: dict[str, tuple[float, int]] = {}
        """By broker, the oldest first: when its last record was read, on the monotonic clock, and the record's time."""

    def begin(self, snapshots_ms: Iterable[int]) -> None:
        """Call it once the initial channel content is read, with the times of its snapshots.

        Only a channel without records and snapshots, where nothing can be lost, starts from this broker's clock.
        """
        self._has_begun = True
        if _BEFORE not in self._heard:
            self._heard[_BEFORE] = self._clock_s(), max(snapshots_ms, default=self._wall_ms())

    def take(self, change: Change) -> None:
        """Note the time in a record of another broker, or of any before our start: its writer need not be live."""
        name = change.record.actor.name if self._has_begun else _BEFORE
        if name == self._name:
            return
        self._heard.pop(name, None)
        self._heard[name] = self._clock_s(), change.record.at_ms
        if len(self._heard) > KNOWN_AT_MOST:
            del self._heard[next(iter(self._heard))]

    def offset_ms(self, reports_ms: Mapping[str, int]) -> int:
        """How far this broker's clock is ahead of the median of the live brokers' clocks, its own among them.

        `reports_ms` is how far each live broker's clock was ahead of the log's at its last load report. It counts for
        brokers without a fresh record in the channel. Of three or more clocks the wrong one is far from the median. Two
        are equally far from it.
        """
        others_ms = dict(reports_ms)
        own_ms = others_ms.pop(self._name, None)
        reported = {} if own_ms is None else {name: ms - own_ms for name, ms in others_ms.items()}
        return -round(median([0, *(reported | self._ahead_ms()).values()]))

    def apart_ms(self) -> dict[str, int]:
        """How far each live broker's clock is ahead of this one's, if that is more than `APART_MS`."""
        return {name: ms for name, ms in self._ahead_ms().items() if abs(ms) > APART_MS}

    def _ahead_ms(self) -> dict[str, int]:
        """How far each live broker's clock is ahead of this one's."""
        now_s, own_ms = self._clock_s(), self._wall_ms()
        return {
            name: self._moved_on(heard, now_s) - own_ms
            for name, heard in self._heard.items()
            if name != _BEFORE and now_s - heard[0] <= FRESH_S
        }

    def now_ms(self) -> int | None:
        """The lowest of the live brokers' clocks and our own. None before `begin`, and while they disagree."""
        apart = self.apart_ms()
        if apart.keys() != self._told:
            self._told = frozenset(apart)
            for name, ms in apart.items():
                which = "behind" if ms > 0 else "ahead of"
                _log.warning(
                    "this broker's clock is %.0f s %s that of %s: correct the wrong one; nothing is trimmed until then",
                    abs(ms) / 1000, which, name,
                )  # fmt: skip
        if apart or not self._has_begun:
            return None
        now_s, own_ms = self._clock_s(), self._wall_ms()
        fresh = [heard for name, heard in self._heard.items() if name != _BEFORE and now_s - heard[0] <= FRESH_S]
        known = fresh or list(self._heard.values())[-1:]
        return min([own_ms, *(self._moved_on(heard, now_s) for heard in known)])

    @staticmethod
    def _moved_on(heard: tuple[float, int], now_s: float) -> int:
        heard_s, at_ms = heard
        return at_ms + round((now_s - heard_s) * 1000)
